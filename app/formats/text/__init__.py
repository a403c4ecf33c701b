"""Requests and answers of text prompts, common to the plain wire formats."""
