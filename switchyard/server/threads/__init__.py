"""Decides which request gets a thread, and for how long."""
