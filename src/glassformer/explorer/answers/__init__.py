"""What is answered: a text that a model has read, and all that is told of it."""
