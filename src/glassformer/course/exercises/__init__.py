"""The exercises of each lab: a module ``LAB`` offers ``EXERCISES``."""
