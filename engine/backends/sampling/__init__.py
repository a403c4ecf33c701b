"""Draws the next tokens of all jobs of a batch at once. Uses no library except torch."""
