"""Lists of a request at their limit, and with one item more."""

import pytest

USER = {"role": "user", "content": "x"}
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
REST = {
    CHAT: {"messages": [USER]},
    RESPONSES: {"input": "x"},
    MESSAGES: {"messages": [USER], "max_tokens": 1},
    "/completion": {"prompt": "x"},
    "/api/v1/generate": {"prompt": "x"},
    "/api/chat": {"messages": [USER]},
}


def word(i):
    return f"w{i}"


@pytest.mark.parametrize(
    ("path", "name", "most", "item"),
    [
        (MESSAGES, "messages", 2048, lambda i: USER),
        (RESPONSES, "input", 2048, lambda i: USER),
        (RESPONSES, "tools", 512, lambda i: {"type": "function", "name": f"f{i}"}),
        (MESSAGES, "tools", 512, lambda i: {"name": f"f{i}", "input_schema": {"type": "object"}}),
        (CHAT, "stop", 16, word),
        (MESSAGES, "stop_sequences", 16, word),
        ("/completion", "stop", 16, word),
        ("/completion", "response_fields", 64, word),
        ("/api/v1/generate", "stop_sequence", 16, word),
    ],
)
def test_a_list_may_be_as_long_as_the_document_says(client, path, name, most, item):
    at_most = client.post(path, json={**REST[path], name: list(map(item, range(most)))})
    if at_most.status_code != 200:  # of that many messages there are too many tokens
        assert "too long" in at_most.text or "context_length_exceeded" in at_most.text
    beyond = client.post(path, json={**REST[path], name: list(map(item, range(most + 1)))})
    assert beyond.status_code == 400 and name in beyond.json["error"]["message"]
