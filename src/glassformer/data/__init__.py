"""What models learn from: sequences made by rule, and how well they can be predicted."""
