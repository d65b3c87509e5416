"""The computations behind the answers: runs of models on texts, and what is derived from them."""
