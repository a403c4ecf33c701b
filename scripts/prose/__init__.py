"""The prose of the project, read by proselint with our own style: `python -m scripts.prose`."""
