"""Reads a model directory, without torch."""
