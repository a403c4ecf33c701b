"""Values that ask for nothing are taken; the same values of another type are refused."""

import pytest

from switchyard.app.request import neutral
from tests.scripted import ScriptedBackend

PROMPT = {"prompt": "x", "max_tokens": 1}
MESSAGES = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
INPUT = {"input": "x", "max_output_tokens": 1}


@pytest.mark.parametrize(
    ("url", "body", "name", "value", "other"),
    [
        ("/v1/responses", INPUT, "store", False, 0),
        ("/v1/responses", INPUT, "background", False, 0),
        ("/v1/chat/completions", MESSAGES, "store", False, 0),
        ("/v1/chat/completions", MESSAGES, "functions", [], False),
        ("/v1/completions", PROMPT, "suffix", "", False),
    ],
)
def test_a_neutral_value_counts_by_its_type(make_client, url, body, name, value, other):
    client = make_client(ScriptedBackend())
    assert client.post(url, json={**body, name: value}).status_code == 200
    response = client.post(url, json={**body, name: other})
    assert response.status_code == 400
    assert response.json["error"]["param"] == name


@pytest.mark.parametrize(
    ("url", "body", "told"),
    [
        ("/v1/completions", {**PROMPT, "suffix": "", "store": False}, "store,suffix"),
        ("/v1/completions", {**PROMPT, "suffix": None, "n": 1}, None),
        ("/v1/chat/completions", {**MESSAGES, "service_tier": "auto"}, "service_tier"),
        ("/v1/responses", {**INPUT, "truncation": "disabled"}, "truncation"),
        ("/api/v1/generate", {"prompt": "x", "max_length": 1, "memory": ""}, "memory"),
        ("/generate", {**PROMPT, "n": 1, "temperature": 0.5}, None),
    ],
)
def test_what_asks_for_nothing_is_told(make_client, url, body, told):
    client = make_client(ScriptedBackend())
    response = client.post(url, json=body)
    assert response.status_code == 200
    assert set((response.headers.get("X-Switchyard-Ignored") or "").split(",")) == set(
        (told or "").split(",")
    )
    assert "X-Switchyard-Ignored" not in client.post(url, json=PROMPT).headers


def test_what_is_in_a_message_and_asks_for_nothing_is_told_by_its_place(make_client):
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    messages[1]["annotations"] = []
    messages.append({"role": "user", "content": "z"})
    body = {"messages": messages, "max_tokens": 1, "stream": True}
    response = make_client(ScriptedBackend()).post("/v1/chat/completions", json=body)
    assert response.headers["X-Switchyard-Ignored"] == "messages.annotations"


def test_a_value_that_asks_for_something_is_refused_with_what_would_ask_for_nothing(make_client):
    body = {**PROMPT, "service_tier": "flex"}
    response = make_client(ScriptedBackend()).post("/v1/completions", json=body)
    assert response.status_code == 400
    assert response.json["error"]["message"] == (
        'service_tier is not supported, but for "auto" or "default", which ask for nothing'
    )


def test_the_header_is_bounded():
    neutral.begin()
    for i in range(1000):
        neutral.note(f"name_{i}")
    told = neutral.told()
    assert len(told) <= neutral.MAX_TOLD
    assert told.startswith("name_0,name_1,") and told.endswith(",...")
    neutral.begin()
    assert neutral.told() == ""
