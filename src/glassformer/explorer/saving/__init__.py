"""Save the page as one file or as a figure, with its state and the answers that it needs."""
