"""Compute the answers to the page's calls: runs of models on texts, and what runs show."""
