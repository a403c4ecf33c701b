"""OpenAI's Responses: /v1/responses."""

from switchyard.app.formats.responses.routes import blueprint

__all__ = ["blueprint"]
