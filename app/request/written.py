"""Lists that clients write as strings. Pure."""

import json
import re
from typing import Any

MAX_JSON = 10_000  # maximum length of a list that is sent as JSON text, in characters
MAX_TOKENS = 4096

# The pattern of texts that `token_ids` accepts, for a schema.
TOKENS = "^ *[0-9]{1,9} *(, *[0-9]{1,9} *)*$"

_TOKEN = re.compile(r" *[0-9]{1,10} *", re.ASCII)


def strings(value: Any) -> Any:
    """The list in a JSON text, as text-generation-webui sends it. Raises ValueError."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value[:MAX_JSON])
    except (ValueError, RecursionError):
        raise ValueError("must be a list of strings, or the JSON text of such a list") from None


def token_ids(value: Any) -> Any:
    """The list in a text of comma-separated ids, which text-generation-webui and TabbyAPI accept.

    Raises ValueError.
    """
    if not isinstance(value, str):
        return value
    ids = value.split(",", MAX_TOKENS)
    if not all(map(_TOKEN.fullmatch, ids)):
        raise ValueError("must be a list of token ids, or a comma-separated string of them")
    return list(map(int, ids))


def biases(text: str) -> Any:
    """The object in a text such as `17:-100, 5:1.5`, as users of Open WebUI write it.

    Any other text is returned unchanged.
    """
    pairs = [pair.split(":") for pair in text[:MAX_JSON].split(",")]
    try:
        return {token_id.strip(): float(bias) for token_id, bias in pairs}
    except ValueError:
        return text
