"""Parts and a configuration make a network."""
