"""The exercises of each lab: each module is named after a lab and defines ``EXERCISES``."""

from glassformer.errors import naming_extras

# Without this, an import in a lab would name the extra of the labs, which is too small.
with naming_extras("course"):
    import matplotlib as matplotlib
