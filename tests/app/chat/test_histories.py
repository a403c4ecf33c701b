"""Every shape of a conversation, in every format that has any, as the template gets it."""

import json

import pytest

from tests.scripted import ScriptedBackend, says

TEMPLATE = "{{ messages | tojson }}{% if tools %}{% endif %}"


def user(text):
    return {"role": "user", "content": text}


def answer(text=None, *calls, thoughts=None):
    """`calls`: their identifiers."""
    message = {"role": "assistant", "content": text}
    if thoughts:
        message["reasoning_content"] = thoughts
    if calls:
        message["tool_calls"] = [
            {
                "id": identifier,
                "type": "function",
                "function": {"name": f"f{identifier}", "arguments": {"a": None}},
            }
            for identifier in calls
        ]
    return message


def result(identifier, text):
    return {"role": "tool", "tool_call_id": identifier, "content": text}


HISTORIES = {
    "two of the user in a row": [user("a"), user("b"), answer("x"), user("c")],
    "two of the assistant in a row": [user("a"), answer("x"), answer("y"), user("b")],
    "text beside a call": [user("a"), answer("x", "1"), result("1", "r"), user("b")],
    "a call alone": [user("a"), answer(None, "1"), result("1", "r"), answer("x"), user("b")],
    "two calls": [user("a"), answer(None, "1", "2"), result("1", "r"), result("2", "s")],
    "one call behind the other": [
        user("a"),
        *(answer("x", "1", thoughts="t"), result("1", "r")),
        *(answer(None, "2", thoughts="u"), result("2", "s")),
        user("b"),
    ],
    "thoughts alone": [user("a"), answer(thoughts="t"), user("b")],
    "thoughts before text": [user("a"), answer("x", thoughts="t"), user("b")],
    "thoughts before each of two": [
        user("a"),
        *(answer("x", thoughts="t"), answer("y", thoughts="u")),
        user("b"),
    ],
    "a call without a result": [user("a"), answer("x", "1"), user("b")],
    "of two calls one without a result": [user("a"), answer("x", "1", "2"), result("2", "s")],
    "a result without a call": [user("a"), result("1", "r"), user("b")],
    "a result first of all": [result("1", "r"), user("a")],
    "a call at the end": [user("a"), answer(None, "1")],
}

# Where a format says something else than a chat does.
MERGED = {  # Anthropic's
    "two of the user in a row": [user("a\nb"), answer("x"), user("c")],
    "two of the assistant in a row": [user("a"), answer("x\ny"), user("b")],
    "thoughts before each of two": [user("a"), answer("x\ny", thoughts="t\nu"), user("b")],
}


def as_chat(messages):
    for message in messages:
        calls = [
            {**call, "function": {**call["function"], "arguments": '{"a": null}'}}
            for call in message.get("tool_calls", [])
        ]
        yield {**message, "tool_calls": calls} if calls else message


def as_anthropic(messages):
    for message in messages:
        blocks = []
        if message["role"] == "tool":
            identifier, text = message["tool_call_id"], message["content"]
            blocks = [{"type": "tool_result", "tool_use_id": identifier, "content": text}]
            yield {"role": "user", "content": blocks}
            continue
        if thoughts := message.get("reasoning_content"):
            blocks.append({"type": "thinking", "thinking": thoughts, "signature": "s"})
        if text := message["content"]:
            blocks.append({"type": "text", "text": text})
        for call in message.get("tool_calls", []):
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            blocks.append({"type": "tool_use", "id": call["id"], "name": name, "input": arguments})
        yield {"role": message["role"], "content": blocks}


def as_responses(messages):
    for message in messages:
        if message["role"] == "tool":
            identifier, text = message["tool_call_id"], message["content"]
            yield {"type": "function_call_output", "call_id": identifier, "output": text}
            continue
        if thoughts := message.get("reasoning_content"):
            text = {"type": "reasoning_text", "text": thoughts}
            yield {"type": "reasoning", "summary": [], "content": [text]}
        if text := message["content"]:
            yield {"role": message["role"], "content": text}
        for call in message.get("tool_calls", []):
            item = {"type": "function_call", "call_id": call["id"], "arguments": '{"a": null}'}
            yield {**item, "name": call["function"]["name"]}


@pytest.fixture
def told(make_client, with_template):
    """What the template gets of a request."""
    backend = ScriptedBackend(says("x"))
    client = make_client(backend, path=with_template(TEMPLATE), tool_format="hermes")

    def told(url, **body):
        response = client.post(url, json=body)
        assert response.status_code == 200, response.json
        messages = json.loads(client.models.get().tokenizer.decode(backend.enqueued[-1].prompt))
        for message in messages:  # a message without text is one of nothing
            message["content"] = message.get("content") or None
        return messages

    return told


@pytest.mark.parametrize("shape", HISTORIES)
def test_each_shape_of_a_chat_reaches_the_template(told, shape):
    messages = list(as_chat(HISTORIES[shape]))
    assert told("/v1/chat/completions", messages=messages) == HISTORIES[shape]


@pytest.mark.parametrize("shape", HISTORIES)
def test_each_shape_of_responses_reaches_the_template(told, shape):
    items = list(as_responses(HISTORIES[shape]))
    assert told("/v1/responses", input=items) == HISTORIES[shape]


@pytest.mark.parametrize("shape", [shape for shape in HISTORIES if shape != "a call at the end"])
def test_each_shape_of_messages_reaches_the_template(told, shape):
    expected = MERGED.get(shape, HISTORIES[shape])
    messages = list(as_anthropic(HISTORIES[shape]))
    assert told("/v1/messages", messages=messages, max_tokens=5) == expected


def test_a_model_without_tools_reads_letters_of_all_languages_as_they_are(make_client):
    backend = ScriptedBackend(says("x"))
    client = make_client(backend)
    call = {"name": "f", "arguments": '{"city": "\\u017bory"}'}
    called = {
        "role": "assistant",
        "tool_calls": [{"id": "1", "type": "function", "function": call}],
    }
    tool = {"type": "function", "function": {"name": "f", "description": "Łódź"}}
    body = {"messages": [user("a"), called, result("1", "r")], "tools": [tool]}
    assert client.post("/v1/chat/completions", json=body).status_code == 200
    prompt = client.models.get().tokenizer.decode(backend.enqueued[-1].prompt)
    assert '"description": "Łódź"' in prompt and '{"city": "Żory"}' in prompt


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (
            [user("a"), result("1", "r"), result("2", "s"), user("b")],
            [
                "user\na",
                "user\n<tool_response>\nr\n</tool_response>\n<tool_response>\ns\n</tool_response>",
                "user\nb",
            ],
        ),
        (
            [user("a"), answer("x", "1"), user("b")],
            ["user\na", 'assistant\nx\n<tool_call>\n{"name": "f1",'],
        ),
        ([result("1", "r")], ["user\n<tool_response>\nr\n</tool_response>"]),
    ],
)
def test_calls_and_results_are_turns_of_a_model_without_tools(make_client, messages, expected):
    backend = ScriptedBackend(says("x"))
    client = make_client(backend)
    client.post("/v1/chat/completions", json={"messages": list(as_chat(messages))})
    prompt = client.models.get().tokenizer.decode(backend.enqueued[-1].prompt)
    at = [prompt.index(text) for text in expected]
    assert at == sorted(at)
