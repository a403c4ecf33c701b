"""Values that ask for nothing are taken; the same values of another type are refused."""

import json
import re

import pytest

from switchyard.app.request import neutral
from switchyard.app.request.validation import NEUTRAL, TOLD, Object
from switchyard.engine.messages import ModelInfo
from tests.app.refused import error_of
from tests.scripted import ScriptedBackend

PROMPT = {"prompt": "x", "max_tokens": 1}
USER, PART = {"role": "user", "content": "x"}, {"type": "text", "text": "x", "id": 5}
MESSAGES = {"messages": [USER], "max_tokens": 1}
INPUT = {"input": "x", "max_output_tokens": 1}


@pytest.mark.parametrize(
    ("url", "body", "name", "value", "other"),
    [
        ("/v1/responses", INPUT, "background", False, 0),
        ("/v1/chat/completions", MESSAGES, "store", False, 0),
        ("/v1/chat/completions", MESSAGES, "functions", [], False),
        ("/v1/chat/completions", MESSAGES, "best_of", 1, True),
        ("/v1/chat/completions", MESSAGES, "modalities", ["text"], ["audio"]),
        ("/v1/chat/completions", MESSAGES, "add_bos_token", True, False),
        ("/v1/completions", PROMPT, "do_sample", True, False),
        ("/v1/completions", PROMPT, "suffix", "", False),
    ],
)
def test_a_neutral_value_counts_by_its_type(client, url, body, name, value, other):
    assert client.post(url, json={**body, name: value}).status_code == 200
    assert error_of(client.post(url, json={**body, name: other}))["param"] == name


@pytest.mark.parametrize(
    ("url", "body", "told"),
    [
        ("/v1/completions", {**PROMPT, "suffix": "", "store": False}, "store"),
        ("/v1/completions", {**PROMPT, "suffix": None, "n": 1}, None),
        ("/generate", {**PROMPT, "n": 1, "temperature": 0.5}, None),
    ],
)
def test_what_asks_for_nothing_is_told(client, url, body, told):
    response = client.post(url, json=body)
    assert response.status_code == 200
    assert response.headers.get("X-Switchyard-Ignored") == told
    assert "X-Switchyard-Ignored" not in client.post(url, json=PROMPT).headers


def test_what_is_in_a_message_and_asks_for_nothing_is_told_by_its_place(client):
    part = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}
    messages = [{"role": "user", "content": [part]}, {"role": "assistant", "content": "y"}]
    notes = ("annotations", "provider_specific_fields", "reasoning", "thinking_blocks")
    messages[1] |= {name: [{"a": 1}] for name in notes}
    call = {"id": "1", "function": {"name": "f", "arguments": ""}, "extra_content": {"a": 1}}
    messages[1]["tool_calls"] = [call]
    messages.append({"role": "tool", "content": "z", "tool_call_id": "1"})
    body = {"messages": messages, "max_tokens": 1, "stream": True}
    response = client.post("/v1/chat/completions", json=body)
    told = {"content.cache_control", "tool_calls.extra_content", *notes}
    names = response.headers["X-Switchyard-Ignored"].split(",")
    assert set(names) == {f"messages.{name}" for name in told}


def test_a_value_that_asks_for_something_is_refused_with_what_would_ask_for_nothing(client):
    body = {**PROMPT, "service_tier": "priority"}
    assert error_of(client.post("/v1/completions", json=body))["message"] == (
        'service_tier is not supported, except for "auto" or "default" or "flex", which have no'
        " effect"
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


OTHER_KINDS = {  # of a route whose example is of another kind
    "Textgen": {"prompt": "x", "max_new_tokens": 1},
    "TokenizeChat": {"messages": MESSAGES["messages"]},
}


def neutral_bodies(api, at_once):
    """Route, kind of body, and bodies of `at_once` names. Together they have each value that asks
    for nothing, as the contract has them.
    """
    for path, operations in api["paths"].items():
        contents = operations.get("post", {}).get("requestBody", {}).get("content", {})
        references = json.dumps([content["schema"] for content in contents.values()])
        for kind in re.findall(r"#/components/schemas/(\w+)", references):
            left = {}
            for name, value in api["components"]["schemas"][kind].get("properties", {}).items():
                if value.get("description") == NEUTRAL:
                    left[name] = [one for one in value["enum"] if one is not None]
                elif value.get("description") == TOLD:
                    left[name] = [0, "x", [1], {"a": None}]
            yield path, kind, list(bodies_of(left, at_once))


def bodies_of(left, at_once):
    while left := {name: values for name, values in left.items() if values}:
        yield {name: left[name].pop() for name in [*left][:at_once]}


def test_each_neutral_value_is_taken_and_told(make_client, with_tokens):
    backend = ScriptedBackend(info=ModelInfo(2048, 5000, 256, 64, "scripted"))
    names = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]
    client = make_client(backend, path=with_tokens(names))
    api = client.get("/openapi.json").json
    num_values = 0
    for path, kind, bodies in neutral_bodies(api, at_once=8):
        content = api["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        least = OTHER_KINDS.get(kind, content["example"])
        for body in bodies:
            response = client.post(path, json={**least, **body})
            assert response.status_code == 200, (path, body, response.text)
            told = response.headers["X-Switchyard-Ignored"].split(",")
            assert sorted(told) == sorted(body), (path, body)
            num_values += len(body)
    assert num_values > 400


def kinds_of(base):
    for kind in base.__subclasses__():
        yield kind
        yield from kinds_of(kind)


def test_what_is_honoured_is_not_told_as_ignored():
    kinds = [kind for kind in kinds_of(Object) if kind.neutral]
    assert kinds
    for kind in kinds:
        fields = {field.alias or name for name, field in kind.model_fields.items()}
        assert fields & kind.neutral.keys() == set(), kind


@pytest.mark.parametrize(
    ("url", "more", "told"),
    [
        ("/v1/completions", {"topk": 5, "stream_options": None}, "topk"),
        ("/v1/completions", {"stream": True, "stream_options": {"a b": 1, "c": 2}}, "?,{}c"),
        ("/v1/chat/completions", {"messages": [{**USER, "id": 5}]}, "{}id"),
        ("/v1/chat/completions", {"messages": [{**USER, "content": [PART]}]}, "{}content.id"),
        ("/v1/chat/completions", {"a,b\r\nc: d": 5}, "?"),
    ],
)
def test_unknown_parameters_are_ignored_where_the_setting_says_so(make_client, url, more, told):
    body = {**(PROMPT if "chat" not in url else MESSAGES), **more}
    assert make_client().post(url, json=body).status_code == 400
    client = make_client(unknown_parameters="ignore")
    response = client.post(url, json=body)
    assert response.status_code == 200, response.text
    place = "stream_options." if "stream_options" in more else "messages."
    assert response.headers["X-Switchyard-Ignored"] == told.format(place)
    refused = client.post(url, json={**body, "temperature": 9, "store": 5})
    assert refused.json["error"]["param"] == "store"


@pytest.mark.parametrize("value", [0, None])
def test_a_body_of_hundreds_of_fields_is_read_to_its_end(make_client, value):
    """Front ends send all that any server knows; what says null is not counted."""
    body = {f"field_{i}": value for i in range(290 if value == 0 else 500)}
    client = make_client(unknown_parameters="ignore")
    assert client.post("/v1/completions", json=body | PROMPT).status_code == 200


@pytest.mark.parametrize(
    ("url", "body", "name", "context"),
    [
        ("/v1/chat/completions", MESSAGES, "max_completion_tokens", 2048),
        ("/api/v1/generate", {"prompt": "x", "truncation_length": 100}, "max_new_tokens", 100),
    ],
)
def test_a_limit_by_another_name_is_cut_to_what_fits(client, url, body, name, context):
    body = {key: value for key, value in body.items() if key != "max_tokens"}
    response = client.post(url, json={**body, name: 32_000})
    assert (response.status_code, response.headers["X-Switchyard-Ignored"]) == (200, name)
    [job] = client.backend.enqueued
    assert len(job.prompt) + job.max_new_tokens == context


def test_no_limit_at_all_is_the_default(make_client):
    client = make_client(default_max_tokens=7)
    client.post("/v1/chat/completions", json={**MESSAGES, "max_tokens": -1})
    client.post("/completion", json={"prompt": "x", "n_predict": -1})
    client.post("/completion", json={"prompt": "x", "n_predict": 0})
    assert [job.max_new_tokens for job in client.backend.enqueued] == [7, 7, 0]


def test_what_a_request_tells_ends_with_it(client):
    """Otherwise what runs on its thread later, a host's `generate` say, would not be refused."""
    for body in ({**PROMPT, "store": False}, {**PROMPT, "no_such": 1}, {"prompt": 3}):
        with client.post("/v1/completions", json=body) as response:
            response.get_data()
        assert not neutral.is_telling()
