"""Training data: sequences made by rule, texts with labels, and tokenizers."""
