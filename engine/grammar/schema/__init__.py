"""Compiles JSON schemas to rules in Lark that allow the properties of an object in any order."""
