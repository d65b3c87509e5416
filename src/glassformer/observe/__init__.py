"""Looking inside: figures of heads and circuits, and what a model costs."""
