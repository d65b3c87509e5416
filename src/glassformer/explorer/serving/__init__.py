"""The page and its calls over HTTP."""
