"""Draws the next tokens, for all jobs of a batch at once. torch alone."""
