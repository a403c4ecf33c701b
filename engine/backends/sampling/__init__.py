"""Draws the next tokens for all jobs of a batch at once. Uses only torch."""
