"""The four course documents, end to end, under their own names."""
