"""Reads an unknown model directory in a separate process, before this process opens it."""
