"""What one looks at: how figures look and are saved, a head's intermediate results, its circuits."""
