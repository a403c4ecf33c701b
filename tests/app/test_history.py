"""What the server has answered it takes back as history, whatever a model has written."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.scripted import ScriptedBackend, says

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
USER = {"role": "user", "content": "Hello"}
PIECES = (
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>"),
    *('{"name": "add", ', '"arguments": ', '"parameters": ', '{"a": 1}', "}", "{", "[", "]", "\n"),
    *('{"name": "add", "arguments": {"a": 1}}', '{"name": "add"}', '"', "\\", ",", " ", "é", "\0"),
    *("Hm.", "<|im_end|>", "null", "{{ x }}", '<tool_call>{"name": "add", "arguments": {"a": '),
)
texts = st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=12)


def of_chat(client):
    tools = [{"type": "function", "function": {"name": "add", "parameters": SCHEMA}}]
    ask = {"tools": tools, "max_tokens": 99}
    url = "/v1/chat/completions"
    message = client.post(url, json={**ask, "messages": [USER]}).json["choices"][0]["message"]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": "2"}
        for call in message.get("tool_calls", ())
    ]
    return client.post(url, json={**ask, "messages": [USER, message, *results, USER]})


def of_responses(client):
    ask = {"tools": [{"type": "function", "name": "add", "parameters": SCHEMA}]}
    url = "/v1/responses"
    output = client.post(url, json={**ask, "input": [USER]}).json["output"]
    results = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "2"}
        for item in output
        if item["type"] == "function_call"
    ]
    return client.post(url, json={**ask, "input": [USER, *output, *results, USER]})


def of_messages(client):
    ask = {"tools": [{"name": "add", "input_schema": SCHEMA}], "max_tokens": 99}
    url = "/v1/messages"
    content = client.post(url, json={**ask, "messages": [USER]}).json["content"]
    results = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": "2"}
        for block in content
        if block["type"] == "tool_use"
    ]
    answer = {"role": "assistant", "content": content}
    return client.post(
        url, json={**ask, "messages": [USER, answer, {"role": "user", "content": results}, USER]}
    )


@pytest.mark.parametrize("again", [of_chat, of_responses, of_messages])
def test_every_answer_is_taken_back(make_client, pytestconfig, again):
    written = []
    client = make_client(ScriptedBackend(lambda job: says(*written)(job)))

    @settings(
        max_examples=pytestconfig.option.histories,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(texts)
    def check(pieces):
        written[:] = pieces
        response = again(client)
        assert response.status_code == 200, response.text

    check()
