"""From logits to text: sampling rules and generation."""
