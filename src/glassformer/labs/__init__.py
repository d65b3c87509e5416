"""The four course documents, end to end, under their own names."""

from glassformer.errors import naming_extras

with naming_extras("labs"):
    import matplotlib as matplotlib
