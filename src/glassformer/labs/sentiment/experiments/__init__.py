"""The experiments of the sentiment lab, and what makes a lab of them."""
