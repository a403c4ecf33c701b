"""What the server has answered it takes back as history, whatever a model has written."""

import json
import pathlib

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from switchyard.engine.messages import ModelInfo
from tests.app.chat.shapes import SHAPES, SINGLE
from tests.app.conftest import change, prompt_of
from tests.scripted import ScriptedBackend, says

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
USER = {"role": "user", "content": "Hello"}
PIECES = (
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>"),
    *('{"name": "add", ', '"arguments": ', '"parameters": ', '{"a": 1}', "}", "{", "[", "]", "\n"),
    *('{"name": "add", "arguments": {"a": 1}}', '{"name": "add"}', '"', "\\", ",", " ", "é", "\0"),
    *("[TOOL_CALLS] [", "<|calls|><|call|>function<|sep|>add\n```json\n", "\n```<|/call|>"),
    *("; ", ", ", '{"name": "add", "parameters": {"a": 1}}', '[{"name": "add", "arguments": {}}'),
    *("Hm.", "<|im_end|>", "null", "{{ x }}", '<tool_call>{"name": "add", "arguments": {"a": '),
)
TAGS = (
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    *("[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "<|end|>"),
    *("<|User|>", "<|Assistant|>", "<|calls|>", "<|call|>", "<|sep|>", "<|/call|>", "<|/calls|>"),
    *("<|output|>", "<|/output|>", "<|user|>", "<|start|>", "<|header|>", "<|eot|>"),
)
texts = st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=12)

SYSTEM = "You add."
RESULT = "It is two."
FUNCTION = {"name": "add", "parameters": SCHEMA}
CHAT = "/v1/chat/completions"


def of_chat(client):
    tools = [{"type": "function", "function": FUNCTION}]
    before = [{"role": "system", "content": SYSTEM}, USER]

    def post(*history):
        ask = {"tools": tools, "max_tokens": 99, "parallel_tool_calls": True}
        return client.post(CHAT, json={**ask, "messages": [*before, *history]})

    message = post().json["choices"][0]["message"]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": RESULT}
        for call in message.get("tool_calls", ())
    ]
    return len(results), [post(message, *results, *more) for more in ([], [USER])]


def of_responses(client):
    tools = [{"type": "function", **FUNCTION}]

    def post(*history):
        ask = {"tools": tools, "instructions": SYSTEM, "parallel_tool_calls": True}
        return client.post("/v1/responses", json={**ask, "input": [USER, *history]})

    output = post().json["output"]
    results = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": RESULT}
        for item in output
        if item["type"] == "function_call"
    ]
    return len(results), [post(*output, *results, *more) for more in ([], [USER])]


def of_messages(client):
    tool = {"name": "add", "input_schema": SCHEMA}

    def post(*history):
        choice = {"type": "auto", "disable_parallel_tool_use": False}
        ask = {"tools": [tool], "tool_choice": choice, "system": SYSTEM, "max_tokens": 99}
        return client.post("/v1/messages", json={**ask, "messages": [USER, *history]})

    content = post().json["content"]
    results = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": RESULT}
        for block in content
        if block["type"] == "tool_use"
    ]
    text = {"type": "text", "text": "Hello"}
    return len(results), [
        post({"role": "assistant", "content": content}, {"role": "user", "content": last})
        for last in ([*results, text], results or [text])
    ]


@pytest.fixture
def model_of(make_client, with_template):
    """(client, backend) of a model whose chat template has a shape, and whose tokenizer has TAGS.

    `layout`: the tags are `plain` text, `special` tokens, or tokens that are only `added`.
    """

    def make(shape, layout="plain", script=lambda job: says("x")(job)):
        path = with_template(SHAPES[shape])
        if layout != "plain":
            file = f"{path}/tokenizer.json"
            tokenizer = Tokenizer.from_file(file)
            tags = [AddedToken(tag, normalized=False, special=layout == "special") for tag in TAGS]
            tokenizer.add_tokens(tags)
            tokenizer.save(file)
            # Else they are beyond the weights.
            change(pathlib.Path(path, "config.json"), vocab_size=tokenizer.get_vocab_size())
        backend = ScriptedBackend(script, info=ModelInfo(8192, 5000, 256, 64, "scripted"))
        return make_client(backend, path=path), backend

    return make


@pytest.mark.parametrize(
    ("shape", "layout"),
    [*((shape, "plain") for shape in SHAPES)]
    + [(shape, layout) for shape in ("hermes", "named") for layout in ("special", "added")],
)
@pytest.mark.parametrize("again", [of_chat, of_responses, of_messages])
def test_every_answer_is_taken_back(model_of, pytestconfig, again, shape, layout):
    written = []
    client, backend = model_of(shape, layout, lambda job: says(*written)(job))
    tokenizer = client.models.get().tokenizer

    @settings(
        max_examples=pytestconfig.option.histories // 4,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @example(['<tool_call>{"name": "add"}</tool_call>' * 2])
    @example(['{"name": "add", "parameters": {}}; ' * 2])
    @example(['[TOOL_CALLS] [{"name": "add"}, {"name": "add"}]'])
    @example(["<|calls|>", *['<|call|>function<|sep|>add\n```json\n{"a": 1}\n```<|/call|>\n'] * 2])
    @given(texts)
    def check(pieces):
        written[:] = pieces
        num_results, responses = again(client)
        for response in responses:
            assert response.status_code == 200, response.text
        for job in backend.enqueued[-len(responses) :]:
            prompt = tokenizer.decode(job.prompt)
            assert SYSTEM in prompt and prompt.count(RESULT) == num_results

    check()


@pytest.mark.parametrize("shape", SHAPES)
def test_no_text_of_a_client_becomes_a_control_token(model_of, shape):
    client, backend = model_of(shape, "special")
    special = client.models.get().tokenizer.control_ids
    counts = []
    for text in ("x", "x".join(TAGS)):
        function = {"name": text, "arguments": json.dumps({text: text})}
        called = {"tool_calls": [{"id": text, "type": "function", "function": function}]}
        parameters = {"type": "object", "properties": {text: {"title": text}}}
        tool = {"name": "add", "description": text, "parameters": parameters}
        messages = [
            {"role": "system"},
            {"role": "user", "name": text},
            {"role": "assistant", "reasoning_content": text, **called},
            {"role": "tool", "tool_call_id": text},
            {"role": "user"},
        ]
        body = {"messages": [{**message, "content": text} for message in messages]}
        body["tools"] = [{"type": "function", "function": tool}]
        response = client.post(CHAT, json=body)
        assert response.status_code == 200, response.text
        counts.append(sum(token_id in special for token_id in backend.enqueued[-1].prompt))
    assert counts[0] == counts[1]
    assert counts[0] > 0 or shape == "no system"  # the server's and the template's own


@pytest.mark.parametrize("shape", SHAPES)
def test_calls_sent_back_keep_their_order_and_their_results(make_client, with_template, shape):
    client = make_client(ScriptedBackend(says("x")), path=with_template(SHAPES[shape]))
    calls, results = [], []
    for i in range(3):
        name = f"call_of_another_server_{i}"
        function = {"name": "add", "arguments": json.dumps({"a": f"argument {i}"})}
        calls.append({"id": name, "type": "function", "function": function})
        results.append({"role": "tool", "tool_call_id": name, "content": f"result {i}"})
    messages = [USER, {"role": "assistant", "content": None, "tool_calls": calls}]
    tools = [{"type": "function", "function": FUNCTION}]
    body = {"messages": [*messages, *reversed(results)], "tools": tools, "max_tokens": 9}
    assert client.post(CHAT, json=body).status_code == 200
    prompt = prompt_of(client)
    at = [prompt.index(f"argument {i}") for i in range(3)]
    assert at == sorted(at)
    of_results = [prompt.index(f"result {i}") for i in range(3)]
    if shape in ("single", "first alone", "by name"):  # each call has its result behind it
        places = [place for pair in zip(at, of_results, strict=True) for place in pair]
        assert places == sorted(places)
    else:
        assert of_results == sorted(of_results, reverse=True)
    # A result that is missing is missed by the model, not by the server.
    body["messages"].pop()
    assert client.post(CHAT, json=body).status_code == 200


ASKS = {"parallel_tool_calls": True}
CHOICE = {"type": "auto", "disable_parallel_tool_use": False}
MESSAGES_TOOL = {"name": "add", "input_schema": SCHEMA}


@pytest.mark.parametrize(
    ("url", "key", "tool", "asks", "name"),
    [
        (CHAT, "messages", {"type": "function", "function": FUNCTION}, ASKS, "parallel_tool_calls"),
        ("/v1/responses", "input", {"type": "function", **FUNCTION}, ASKS, "parallel_tool_calls"),
        (
            *("/v1/messages", "messages", MESSAGES_TOOL, {"tool_choice": CHOICE}),
            "tool_choice.disable_parallel_tool_use",
        ),
    ],
)
def test_one_call_at_a_time_is_the_default_where_a_template_takes_no_more(
    make_client, with_template, url, key, tool, asks, name
):
    call = '{"name": "add", "parameters": {}}'
    client = make_client(ScriptedBackend(says(f"{call}; {call}")), path=with_template(SINGLE))
    body = {key: [USER], "tools": [tool]} | ({"max_tokens": 99} if "messages" in url else {})
    for more, num_calls, ignored in (({}, 1, name), (asks, 2, None)):
        response = client.post(url, json={**body, **more})
        assert response.text.count('"add"') - response.text.count('"parameters"') == num_calls
        assert response.headers.get("X-Switchyard-Ignored") == ignored
        if url == "/v1/responses":
            assert response.json["parallel_tool_calls"] == bool(more)
    assert "X-Switchyard-Ignored" not in client.post(url, json={**body, "tools": []}).headers
