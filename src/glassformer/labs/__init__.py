"""The labs of the four course documents, end to end, under the documents' own names."""

from glassformer.errors import naming_extras

# Every lab draws figures: without the extra, the error says what to install.
with naming_extras("labs"):
    import matplotlib as matplotlib
