"""Reads and corrects a model's configuration, and refuses models that exllamav2 can't run."""
