"""Estimates of memory: of this process, of the host, of GPUs."""
