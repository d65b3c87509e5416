"""The page as one file, or as a figure: what a state of it shows, and the answers that it needs."""
