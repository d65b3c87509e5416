"""The page as one file, or as a figure: the state that it shows and the answers that it needs."""
