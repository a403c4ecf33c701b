"""Estimates the memory of this process, of the host and of GPUs."""
