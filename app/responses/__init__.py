"""OpenAI's Responses: /v1/responses."""

from app.responses.routes import blueprint

__all__ = ["blueprint"]
