"""Number formats of weights: MXFP4, and experts stored in it."""
