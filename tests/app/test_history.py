"""What the server has answered it takes back as history, whatever a model has written."""

import json
import pathlib

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from switchyard.engine.messages import ModelInfo
from tests.app.chat.shapes import SHAPES, SINGLE
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


def of_chat(client):
    tools = [{"type": "function", "function": {"name": "add", "parameters": SCHEMA}}]
    ask = {"tools": tools, "max_tokens": 99, "parallel_tool_calls": True}
    url = "/v1/chat/completions"
    before = [{"role": "system", "content": SYSTEM}, USER]
    message = client.post(url, json={**ask, "messages": before}).json["choices"][0]["message"]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": RESULT}
        for call in message.get("tool_calls", ())
    ]
    history = [*before, message, *results]
    return len(results), [
        client.post(url, json={**ask, "messages": [*history, *more]}) for more in ([], [USER])
    ]


def of_responses(client):
    tools = [{"type": "function", "name": "add", "parameters": SCHEMA}]
    ask = {"tools": tools, "instructions": SYSTEM, "parallel_tool_calls": True}
    url = "/v1/responses"
    output = client.post(url, json={**ask, "input": [USER]}).json["output"]
    results = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": RESULT}
        for item in output
        if item["type"] == "function_call"
    ]
    history = [USER, *output, *results]
    return len(results), [
        client.post(url, json={**ask, "input": [*history, *more]}) for more in ([], [USER])
    ]


def of_messages(client):
    ask = {
        "tools": [{"name": "add", "input_schema": SCHEMA}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": False},
        "system": SYSTEM,
        "max_tokens": 99,
    }
    url = "/v1/messages"
    content = client.post(url, json={**ask, "messages": [USER]}).json["content"]
    results = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": RESULT}
        for block in content
        if block["type"] == "tool_use"
    ]
    text = {"type": "text", "text": "Hello"}
    history = [USER, {"role": "assistant", "content": content}]
    return len(results), [
        client.post(url, json={**ask, "messages": [*history, {"role": "user", "content": last}]})
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
            config = pathlib.Path(path, "config.json")
            sizes = {"vocab_size": tokenizer.get_vocab_size()}  # else they are beyond the weights
            config.write_text(json.dumps(json.loads(config.read_text()) | sizes))
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
        call = {"name": text, "arguments": json.dumps({text: text})}
        body = {
            "messages": [
                {"role": "system", "content": text},
                {"role": "user", "content": text, "name": text},
                {
                    "role": "assistant",
                    "content": text,
                    "reasoning_content": text,
                    "tool_calls": [{"id": text, "type": "function", "function": call}],
                },
                {"role": "tool", "tool_call_id": text, "content": text},
                {"role": "user", "content": text},
            ],
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": "add",
                        "description": text,
                        "parameters": {"type": "object", "properties": {text: {"title": text}}},
                    },
                }
            ],
        }
        response = client.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        counts.append(sum(token_id in special for token_id in backend.enqueued[-1].prompt))
    assert counts[0] == counts[1]
    assert counts[0] > 0 or shape == "no system"  # the server's and the template's own


@pytest.mark.parametrize("shape", SHAPES)
def test_calls_sent_back_keep_their_order_and_their_results(make_client, with_template, shape):
    backend = ScriptedBackend(says("x"))
    client = make_client(backend, path=with_template(SHAPES[shape]))
    calls = [
        {
            "id": f"call_of_another_server_{i}",
            "type": "function",
            "function": {"name": "add", "arguments": json.dumps({"a": f"argument {i}"})},
        }
        for i in range(3)
    ]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": f"result {i}"}
        for i, call in enumerate(calls)
    ]
    messages = [USER, {"role": "assistant", "content": None, "tool_calls": calls}]
    tools = [{"type": "function", "function": {"name": "add", "parameters": SCHEMA}}]
    body = {"messages": [*messages, *reversed(results)], "tools": tools, "max_tokens": 9}
    assert client.post("/v1/chat/completions", json=body).status_code == 200
    prompt = client.models.get().tokenizer.decode(backend.enqueued[-1].prompt)
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
    assert client.post("/v1/chat/completions", json=body).status_code == 200


@pytest.mark.parametrize("url", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_one_call_at_a_time_is_the_default_where_a_template_takes_no_more(
    make_client, with_template, url
):
    call = '{"name": "add", "parameters": {}}'
    client = make_client(ScriptedBackend(says(f"{call}; {call}")), path=with_template(SINGLE))
    function = {"name": "add", "parameters": SCHEMA}
    key = "input" if url == "/v1/responses" else "messages"
    tool = {"type": "function", "function": function}
    body = {key: [USER], "tools": [tool]}
    asks = {"parallel_tool_calls": True}
    name = "parallel_tool_calls"
    if url == "/v1/responses":
        body["tools"] = [{"type": "function", **function}]
    if url == "/v1/messages":
        body |= {"tools": [{"name": "add", "input_schema": SCHEMA}], "max_tokens": 99}
        asks = {"tool_choice": {"type": "auto", "disable_parallel_tool_use": False}}
        name = "tool_choice.disable_parallel_tool_use"
    for more, num_calls, ignored in (({}, 1, name), (asks, 2, None)):
        response = client.post(url, json={**body, **more})
        assert response.text.count('"add"') - response.text.count('"parameters"') == num_calls
        assert response.headers.get("X-Switchyard-Ignored") == ignored
        if url == "/v1/responses":
            assert response.json["parallel_tool_calls"] == bool(more)
    response = client.post(url, json={**body, "tools": []})
    assert "X-Switchyard-Ignored" not in response.headers
