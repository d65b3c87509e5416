"""Transformers you can see through."""

from importlib.metadata import version

__version__ = version("glassformer")
