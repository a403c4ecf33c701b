"""Checks the project's prose by proselint with our own style: `python -m scripts.prose`."""
