"""Models to explore: bundled, stored as runs and checkpoints, or passed from Python."""
