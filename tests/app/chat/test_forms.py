"""Tools and a form of the output in one request: an answer is calls, or has the form."""

import json

import pytest

from tests.app.chat.conftest import URL
from tests.app.chat.test_enforced import MARKS, REQUEST, TEMPLATE, VALID, WEATHER, verdict
from tests.app.conftest import frames
from tests.engine.forced import exl2_backend
from tests.scripted import ScriptedBackend, says

REPORT = {
    "type": "object",
    "properties": {"name": {"enum": ["sun", "rain"]}, "points": {"enum": [1, 2]}},
    "required": ["name", "points"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "report", "schema": REPORT}}
BOTH = {**REQUEST, "response_format": FORM}
IMPOSSIBLE = {"name": "f", "parameters": {"not": {}}, "strict": True}
CALLS = {
    "function-tag": '<function=get_weather>{"city": "CITY"}</function>',
    "hermes": '<tool_call>\n{"name": "get_weather", "arguments": {"city": "CITY"}}\n</tool_call>',
    "mistral-args": '[TOOL_CALLS]get_weather[ARGS]{"city": "CITY"}',
    "mistral": '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "CITY"}}]',
    "llama3": '{"name": "get_weather", "parameters": {"city": "CITY"}}',
}


@pytest.fixture
def job_of(make_client, with_template):
    """What the verdict of a request's grammar is on a text."""

    def ask(format="hermes", **more):
        backend = ScriptedBackend(says("x"))
        path = with_template(TEMPLATE.replace("MARKS", MARKS[format]))
        client = make_client(backend, path=path)
        response = client.post(URL, json={**BOTH, **more})
        assert response.status_code == 200, response.json
        [job] = backend.enqueued
        return lambda text: verdict(client, job, text)

    return ask


@pytest.mark.parametrize("format", CALLS)
def test_an_answer_is_calls_or_has_the_form(job_of, format):
    verdict = job_of(format)
    call = CALLS[format]
    assert verdict(call.replace("CITY", "Rome")) == "end"
    assert verdict(call.replace("CITY", "Roma")) == "refused"
    assert verdict('{"name": "rain", "points": 2}') == "end"
    assert verdict('{"name":"rain",\n  "points":1}') == "end"
    assert verdict('{"name": "rain"') == verdict("") == "go on"
    assert verdict('{"name": "snow"') == verdict("It rains") == "refused"


def test_a_call_that_is_json_alone_keeps_its_frame_and_the_form_its_freedom(job_of):
    verdict = job_of("llama3")
    assert verdict('{"parameters": {"city": "Rome"}') == "refused"
    assert verdict('{"n\\u0061me": "get_w') == "refused"
    assert verdict('{ "name":"get_weather","parameters":\n{"c\\u0069ty" : "Rome"}}') == "end"
    assert verdict('{\n"points": 2, "n\\u0061me": "rain"}') == "end"


def test_arguments_keep_the_references_of_their_schema(job_of):
    city = {"properties": {"city": {"$ref": "#/$defs/city"}}, "required": ["city"]}
    schema = {"type": "object", **city, "$defs": {"city": {"enum": ["Rome"]}}}
    function = {"name": "get_weather", "parameters": schema}
    verdict = job_of("llama3", tools=[{"type": "function", "function": function}])
    assert verdict(CALLS["llama3"].replace("CITY", "Rome")) == "end"
    assert verdict(CALLS["llama3"].replace("CITY", "Oslo")) == "refused"


def test_arguments_are_an_object_though_their_schema_does_not_say_so(job_of):
    function = {"name": "get_weather", "parameters": {"properties": {"city": {"enum": ["Rome"]}}}}
    verdict = job_of("llama3", tools=[{"type": "function", "function": function}])
    assert verdict(CALLS["llama3"].replace("CITY", "Rome")) == "end"
    assert verdict('{"name": "get_weather", "parameters": 5') == "refused"


@pytest.mark.parametrize(
    ("more", "one", "two", "form"),
    [
        ({}, "end", "end", "end"),
        ({"parallel_tool_calls": False}, "end", "refused", "end"),
        ({"tool_choice": "none"}, "refused", "refused", "end"),
        ({"tool_choice": "required"}, "end", "end", "refused"),
        ({"tool_choice": "required", "parallel_tool_calls": False}, "end", "refused", "refused"),
    ],
)
def test_the_choice_of_tools_says_which_of_both_it_may_be(job_of, more, one, two, form):
    verdict = job_of(**more)
    call = CALLS["hermes"].replace("CITY", "Rome")
    assert verdict(call) == one
    assert verdict(f"{call}\n{call}") == two
    assert verdict('{"name": "sun", "points": 1}') == form


def test_an_object_of_any_kind_is_a_form_too(job_of):
    verdict = job_of(response_format={"type": "json_object"})
    assert verdict('{"any": 1}') == verdict(CALLS["hermes"].replace("CITY", "Oslo")) == "end"
    assert verdict("[]") == "refused"


def test_what_looks_like_a_call_in_the_form_is_none(make_client, with_template):
    """The models of this format have no tag in front of its braces."""
    text = '{"note": "<function=get_weather>{} is how"}'
    client = make_client(
        ScriptedBackend(says(*text)),
        path=with_template(TEMPLATE.replace("MARKS", MARKS["function-tag"])),
    )
    form = {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}
    for more in ({}, {"tool_choice": "none"}):
        request = {**BOTH, "response_format": form, **more}
        [choice] = client.post(URL, json=request).json["choices"]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", text)
        streamed = frames(client.post(URL, json={**request, "stream": True}))
        deltas = [body["choices"][0]["delta"] for body in streamed]
        assert "".join(delta.get("content") or "" for delta in deltas) == text


# First characters of what the form has where a call has others.
OF_FORM = {"hermes": b"{", "llama3": b"\n\\prs"}


@pytest.mark.parametrize("format", OF_FORM)
def test_a_model_that_writes_anything_answers_either_way(make_client, with_template, format):
    path = with_template(TEMPLATE.replace("MARKS", MARKS[format]))
    client = make_client(exl2_backend(path), path=path)
    pieces = [piece.strip(b'" ')[:1] or b"-" for piece in client.models.get().tokenizer.pieces]
    biased = [str(i) for i, first in enumerate(pieces) if first in OF_FORM[format]]
    reasons = set()
    for seed in range(8):
        bias = dict.fromkeys(biased, 100 if seed % 2 else -100)
        request = {**BOTH, "seed": seed, "parallel_tool_calls": False, "logit_bias": bias}
        [choice] = client.post(URL, json=request).json["choices"]
        reasons.add(choice["finish_reason"])
        if choice["finish_reason"] == "tool_calls":
            [call] = choice["message"]["tool_calls"]
            assert json.loads(call["function"]["arguments"]) in VALID[call["function"]["name"]]
        else:
            assert json.loads(choice["message"]["content"])["points"] in (1, 2)
    assert reasons == {"tool_calls", "stop"}


def test_both_are_asked_for_in_the_other_shapes_of_chats(make_client):
    backend = ScriptedBackend(says("x"))
    client = make_client(backend)
    weather = WEATHER["function"]
    responses = {
        "input": "Weather?",
        "tools": [{"type": "function", **weather}],
        "text": {"format": {"type": "json_schema", "name": "report", "schema": REPORT}},
    }
    messages = {
        "messages": [{"role": "user", "content": "Weather?"}],
        "max_tokens": 100,
        "tools": [{"name": weather["name"], "input_schema": weather["parameters"]}],
        "output_config": {"format": {"type": "json_schema", "schema": REPORT}},
    }
    call = CALLS["hermes"].replace("CITY", "Rome")
    one = {"/v1/responses": {"parallel_tool_calls": False}}
    one["/v1/messages"] = {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
    for path, request in (("/v1/responses", responses), ("/v1/messages", messages)):
        for more, two in (({}, "end"), (one[path], "refused")):
            assert client.post(path, json={**request, **more}).status_code == 200
            job = backend.enqueued[-1]
            assert verdict(client, job, '{"name": "sun", "points": 1}') == "end"
            assert verdict(client, job, call) == "end"
            assert verdict(client, job, f"{call}\n{call}") == two


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"regex": "[a-z]+", "response_format": None}, "regex"),
        ({"response_format": None, "json_schema": {"not": {}}}, "json_schema"),
        ({"tools": [{"type": "function", "function": IMPOSSIBLE}]}, "tools"),
    ],
)
def test_what_cannot_be_both_is_refused_by_its_name(make_client, more, param):
    response = make_client(ScriptedBackend(says("x"))).post(URL, json={**BOTH, **more})
    assert (response.status_code, response.json["error"]["param"]) == (400, param)
