"""Chooses the next job to run, and measures jobs."""
