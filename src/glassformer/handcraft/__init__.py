"""Weights that a person chooses: described, built, proved or refuted, and compared with what training finds."""
