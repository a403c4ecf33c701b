"""The server: gunicorn's settings, its worker, and the application that it serves."""
