"""The command line: ``main`` finds the commands, which are in ``commands``."""

TEXT, RECURRENCE = "text", "recurrence"
"""Kinds of training data: bytes of a text, or numbers of the recurrence."""
