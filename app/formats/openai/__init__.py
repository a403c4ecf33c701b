"""OpenAI's wire format: /v1/completions, /v1/chat/completions, /v1/models."""

from switchyard.app.formats.openai.routes import blueprint

__all__ = ["blueprint"]
