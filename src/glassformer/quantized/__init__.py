"""Number formats of weights: MXFP4, and experts kept in it."""
