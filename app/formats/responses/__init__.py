"""OpenAI's Responses: /v1/responses."""

from app.formats.responses.routes import blueprint

__all__ = ["blueprint"]
