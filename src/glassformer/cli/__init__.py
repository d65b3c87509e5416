"""The command line: one file per command; main.py finds them."""

TEXT, RECURRENCE = "text", "recurrence"
"""Kinds of training data: bytes of a text, or numbers of the recurrence."""
