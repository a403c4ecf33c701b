"""Compiles JSON schemas to rules in Lark: the properties of an object come in any order."""
