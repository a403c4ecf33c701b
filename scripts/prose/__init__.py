"""Checks the project's prose with proselint and our own style (`python -m scripts.prose`)."""
