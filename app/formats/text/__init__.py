"""Prompts that are text, as the plain wire formats have them in common."""
