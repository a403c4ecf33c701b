"""The served models, in the format of Anthropic's API. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from switchyard import engine


def describe_model(model: engine.Engine) -> dict[str, Any]:
    try:
        max_seq_len = model.info.max_seq_len
    except engine.Refused:  # the model is loading
        max_seq_len = None
    name, created = model.config.name, datetime.fromtimestamp(model.model_dir.created, UTC)
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": created.isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": max_seq_len,
        "max_tokens": max_seq_len,
    }


def list_models(data: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "data": list(data),
        "has_more": False,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
    }
