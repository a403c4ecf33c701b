"""What tests of /v1/responses send, and how they read its streams."""

from tests.app.conftest import named_events

URL = "/v1/responses"
HELLO = {"input": "Hello", "max_output_tokens": 2}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "default": None}}}
TOOL = {"type": "function", "name": "add", "description": "Adds.", "parameters": SCHEMA}


def events(response):
    """Without their numbers, which are in order."""
    bodies = named_events(response)
    assert [body.pop("sequence_number") for body in bodies] == list(range(len(bodies)))
    return bodies
