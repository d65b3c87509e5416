"""What can be looked into: models that come along, that lie about as runs and checkpoints, or that are handed over."""
