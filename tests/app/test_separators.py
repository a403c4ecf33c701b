"""Characters that end a line for some clients, in streams and whole answers."""

import pytest

from tests.scripted import ScriptedBackend, says

SEPARATORS = "\x85\u2028\u2029"
TEXT = f"ä{SEPARATORS}b"
CHAT = {"messages": [{"role": "user", "content": "x"}]}
BODIES = {
    "/v1/completions": {"prompt": "x"},
    "/v1/chat/completions": CHAT,
    "/v1/messages": {**CHAT, "max_tokens": 9},
    "/v1/responses": {"input": "x"},
    "/completion": {"prompt": "x"},
    "/api/chat": CHAT,
}


@pytest.mark.parametrize("url", BODIES)
@pytest.mark.parametrize("accepted", [None, "text/event-stream", "application/x-ndjson"])
def test_json_never_has_a_raw_line_separator(make_client, url, accepted):
    client = make_client(ScriptedBackend(says(*3 * [TEXT])))
    body = {**BODIES[url], "stream": accepted is not None}
    response = client.post(url, json=body, headers={"Accept": accepted or "*/*"})
    text = response.get_data(as_text=True)
    assert response.status_code == 200, text
    assert not set(SEPARATORS) & set(text)
    assert text.count("\\u2028") >= 3
