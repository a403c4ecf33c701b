"""Anthropic's wire format: /v1/messages, and what its clients expect of /v1/models."""

from switchyard.app.formats.anthropic.render import models
from switchyard.app.formats.anthropic.routes import blueprint, describe_model

__all__ = ["blueprint", "describe_model", "models"]
