"""`wsgi:app`, for gunicorn, `flask --app wsgi run` and waitress in a checkout."""

from switchyard.server.wsgi import app, models

__all__ = ["app", "models"]
