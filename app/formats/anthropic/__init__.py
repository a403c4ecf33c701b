"""Anthropic's wire format: /v1/messages, and Anthropic's formats for errors and models."""

from switchyard.app.formats.anthropic.bodies import AnthropicModel, AnthropicModelList
from switchyard.app.formats.anthropic.errors import (
    AnthropicErrorBody,
    describe_to_current,
    is_spoken,
)
from switchyard.app.formats.anthropic.models import describe_model, list_models
from switchyard.app.formats.anthropic.routes import blueprint
from switchyard.app.formats.format import Format, ModelWords, Words

FORMAT = Format(
    "anthropic",
    blueprint,
    Words(
        is_spoken=is_spoken,
        describe=describe_to_current,
        error=AnthropicErrorBody,
        models=ModelWords(describe_model, list_models, AnthropicModel, AnthropicModelList),
    ),
)
