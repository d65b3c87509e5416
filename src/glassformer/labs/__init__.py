"""The four course documents, end to end, under their own names."""

from glassformer.errors import naming_extras

# All of them draw; without the extra their first import says what to install.
with naming_extras("labs"):
    import matplotlib as matplotlib
