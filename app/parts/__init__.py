"""Parsers of model output: text, thoughts and tool calls."""
