"""Transformers you can see through."""
