"""A page to look inside models on: one view, shown by a local server, in a notebook, or from one saved file."""
