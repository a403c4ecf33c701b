"""Schemas, regular expressions and grammars to constraints, and these compiled."""
