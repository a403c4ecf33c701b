"""Requests with text prompts, and their answers, in the plain wire formats."""
