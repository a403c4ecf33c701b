"""Reads a model's configuration, corrects it, and refuses what exllamav2 can't run."""
