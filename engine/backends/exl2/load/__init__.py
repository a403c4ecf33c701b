"""Turns a model directory into a loaded model: configuration, refusals, progress."""
