"""Values that ask for nothing are taken; the same values of another type are refused."""

import pytest

from tests.scripted import ScriptedBackend

PROMPT = {"prompt": "x", "max_tokens": 1}
MESSAGES = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
INPUT = {"input": "x", "max_output_tokens": 1}


@pytest.mark.parametrize(
    ("url", "body", "name", "neutral", "other"),
    [
        ("/v1/responses", INPUT, "store", False, 0),
        ("/v1/responses", INPUT, "background", False, 0),
        ("/v1/chat/completions", MESSAGES, "store", False, 0),
        ("/v1/chat/completions", MESSAGES, "functions", [], False),
        ("/v1/completions", PROMPT, "suffix", "", False),
    ],
)
def test_a_neutral_value_counts_by_its_type(make_client, url, body, name, neutral, other):
    client = make_client(ScriptedBackend())
    assert client.post(url, json={**body, name: neutral}).status_code == 200
    response = client.post(url, json={**body, name: other})
    assert response.status_code == 400
    assert response.json["error"]["param"] == name
