"""Draws the next tokens of all jobs in a batch at once. Uses no library except torch."""
