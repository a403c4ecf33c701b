"""The wire formats: a folder each, from bodies of requests to bodies of answers."""

FORMATS = (
    *("openai", "responses", "anthropic", "plain", "tokens", "kobold", "llamacpp"),
    "websocket",  # needs the extra of that name
)
