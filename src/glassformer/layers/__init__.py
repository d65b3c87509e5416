"""Parts: each file one idea, and nothing here knows a model."""
