"""Reads an unknown model directory in a process of its own, before this process opens it."""
