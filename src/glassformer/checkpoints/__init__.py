"""Weights on disk: safetensors and JSON, complete or absent."""
