"""Tools and a form of the output in one request: an answer is calls, or has the form."""

import json

import pytest

from tests.app.chat.conftest import URL
from tests.app.chat.test_enforced import CALLS, MARKS, REQUEST, TEMPLATE, WEATHER, is_valid
from tests.engine.forced import exl2_backend

REPORT = {
    "type": "object",
    "properties": {"name": {"enum": ["sun", "rain"]}, "points": {"enum": [1, 2]}},
    "required": ["name", "points"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "report", "schema": REPORT}}
BOTH = {**REQUEST, "response_format": FORM}
IMPOSSIBLE = {"name": "f", "parameters": {"not": {}}, "strict": True}


@pytest.fixture
def job_of(chat):
    """What the verdict of a request's grammar is on a text."""

    def ask(format="hermes", **more):
        template = TEMPLATE.replace("MARKS", MARKS[format])
        return chat({**BOTH, **more}, template=template).verdict

    return ask


def described(parameters):
    return [{"type": "function", "function": {"name": "get_weather", "parameters": parameters}}]


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
    verdict = job_of("llama3", tools=described(schema))
    assert verdict(CALLS["llama3"].replace("CITY", "Rome")) == "end"
    assert verdict(CALLS["llama3"].replace("CITY", "Oslo")) == "refused"


def test_arguments_are_an_object_though_their_schema_does_not_say_so(job_of):
    verdict = job_of("llama3", tools=described({"properties": {"city": {"enum": ["Rome"]}}}))
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
    call = CALLS["hermes"].replace("CITY", "Rome")
    texts = (call, f"{call}\n{call}", '{"name": "sun", "points": 1}')
    assert tuple(map(job_of(**more), texts)) == (one, two, form)


def test_an_object_of_any_kind_is_a_form_too(job_of):
    verdict = job_of(response_format={"type": "json_object"})
    assert verdict('{"any": 1}') == verdict(CALLS["hermes"].replace("CITY", "Oslo")) == "end"
    assert verdict("[]") == "refused"


def test_what_looks_like_a_call_in_the_form_is_none(chat):
    """The models of this format have no tag in front of its braces."""
    text = '{"note": "<function=get_weather>{} is how"}'
    template = TEMPLATE.replace("MARKS", MARKS["function-tag"])
    form = {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}
    for more in ({}, {"tool_choice": "none"}):
        request = {**BOTH, "response_format": form, **more}
        asked = chat(request, *text, template=template)
        choice = asked.choice
        assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", text)
        deltas = asked.again({**request, "stream": True}).deltas
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
            assert is_valid(choice["message"]["tool_calls"])
        else:
            assert json.loads(choice["message"]["content"])["points"] in (1, 2)
    assert reasons == {"tool_calls", "stop"}


def test_both_are_asked_for_in_the_other_shapes_of_chats(chat):
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
    texts = ('{"name": "sun", "points": 1}', call, f"{call}\n{call}")
    one = {"type": "auto", "disable_parallel_tool_use": True}
    for url, request, two in (
        ("/v1/responses", responses, "end"),
        ("/v1/responses", {**responses, "parallel_tool_calls": False}, "refused"),
        ("/v1/messages", messages, "end"),
        ("/v1/messages", {**messages, "tool_choice": one}, "refused"),
    ):
        assert [*map(chat(request, url=url).verdict, texts)] == ["end", "end", two]


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"regex": "[a-z]+", "response_format": None}, "regex"),
        ({"response_format": None, "json_schema": {"not": {}}}, "json_schema"),
        ({"tools": [{"type": "function", "function": IMPOSSIBLE}]}, "tools"),
    ],
)
def test_what_cannot_be_both_is_refused_by_its_name(chat, more, param):
    assert chat({**BOTH, **more}).refusal == param
