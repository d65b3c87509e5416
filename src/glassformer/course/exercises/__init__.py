"""The exercises of each lab: a module ``LAB`` offers ``EXERCISES``."""

from glassformer.errors import naming_extras

# The labs, whose packages an extra with fewer of them has, would name that one.
with naming_extras("course"):
    import matplotlib as matplotlib
