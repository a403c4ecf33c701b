"""Reads a model directory for exllamav2: configuration, corrections, refusals."""
