"""Calls, constraints and ends, over each family's own tokens."""

import json

import pytest
from click.testing import CliRunner
from tokenizers import Tokenizer

from switchyard.cli import main
from tests.tokenizers.asking import OverGunicorn
from tests.tokenizers.calls import ROUTES, results, text_of
from tests.tokenizers.families import ENDS, package, template_of
from tests.tokenizers.served import Served, model_of

TWO = [("weather", {"city": "Kraków", "days": 2}), ("time", {"zone": 'say "x" \\ <b>'})]
ONE = TWO[:1]
NAMED = {"type": "function", "function": {"name": "weather"}}
FORM = {
    "type": "json_schema",
    "json_schema": {
        "name": "reply",
        "schema": {
            "type": "object",
            "properties": {"reply": {"type": "string"}},
            "required": ["reply"],
            "additionalProperties": False,
        },
    },
}
TAGS = ("<think>", "<tool_call>", "</tool_response>", "<|fim_prefix|>")

STRICT = {
    "type": "function",
    "function": {
        **{"name": "weather", "strict": True},
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}

every_route = pytest.mark.parametrize("route", ROUTES)


@pytest.fixture(scope="module")
def served(family, family_path, way, tmp_path_factory):
    """A server whose model writes what a test says."""
    if way == "gunicorn":
        server = OverGunicorn(family, family_path, tmp_path_factory.mktemp("server"))
    else:
        server = Served(family, family_path)
    yield server
    server.close()


def user(text):
    return [{"role": "user", "content": text}]


def told(served, route, text, **more):
    """What an answer holds; streamed it holds the same."""
    ask = ROUTES[route]
    whole, streamed = (ask(served, user(served.say(text)), streams, **more) for streams in (0, 1))
    assert streamed.told == whole.told
    return whole


@every_route
def test_a_call_in_the_models_own_format_is_a_call(served, route):
    assert told(served, route, text_of(served.family, ONE)).told == ("", ONE)


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["forced", "named"])
def test_a_call_that_must_come_is_a_call(served, way, choice):
    for route in ROUTES if way == "gunicorn" else ["chat"]:
        said = told(served, route, text_of(served.family, ONE), tool_choice=choice)
        assert said.told == ("", ONE), route


@every_route
def test_two_calls_come_and_can_be_sent_back(served, route):
    message, ask = user(served.say(text_of(served.family, TWO))), ROUTES[route]
    for streams in (False, True):
        said = ask(served, message, streams, parallel_tool_calls=True)
        assert said.told == ("", TWO)
        history = [*user("Hi"), *said.message, *results(route, said, served.say("Fine."))]
        assert ask(served, history, streams).told == ("Fine.", [])


@every_route
def test_without_parallel_calls_the_answer_ends_with_the_first(served, route):
    text = text_of(served.family, TWO)
    assert told(served, route, text, parallel_tool_calls=False).told == ("", ONE)


@every_route
def test_beside_a_form_there_are_calls_or_the_form(served, route):
    said = told(served, route, text_of(served.family, ONE), response_format=FORM)
    assert said.told == ("", ONE)
    reply = '{"reply": "햏똠펲"}'
    assert told(served, route, reply, response_format=FORM).told == (reply, [])


def test_text_that_only_looks_like_a_call_stays_text(served):
    text = 'Write <tool_call> or [TOOL_CALLS or {"name": 1}.'
    if served.family.startswith("qwen"):
        text = text.replace("<tool_call>", "<tool-call>")
    assert told(served, "chat", text).told == (text, [])


@every_route
def test_a_strict_function_is_called_in_the_models_own_format(served, route):
    calls = [("weather", {"city": "Kraków"})]
    said = told(served, route, text_of(served.family, calls), tools=[STRICT])
    assert said.told == ("", calls)


def test_thoughts_come_before_a_forced_call(served):
    text = "<think>\nHm.\n</think>\n\n" + text_of(served.family, ONE)
    if served.family != "qwen3":
        pytest.skip("its template has no thoughts")
    said = told(served, "chat", text)
    assert said.told == ("", ONE)
    assert said.message[0]["reasoning_content"] == "Hm."


# Constraints


def completed(served, token_ids, **constraint):
    body = {"prompt": served.say(token_ids), "max_tokens": 100, **constraint}
    [choice] = served.post("/v1/completions", body)["choices"]
    return choice["text"], choice["finish_reason"]


def spelled(served, text):
    """A text in tokens that divide its tags: where a tag is one control token, that isn't text."""
    return [i for start in range(0, len(text), 3) for i in served.ids(text[start : start + 3])]


@pytest.mark.parametrize("tag", TAGS)
def test_a_tag_in_a_constraint_is_a_text_like_any_other(served, tag):
    constant = json.dumps(tag)
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": tag}}}
    object_of = {"type": "object", "properties": {tag: {"const": tag}}, "required": [tag]}
    text = json.dumps({tag: tag})
    cases = [
        (tag, {"choice": ["other", tag]}),
        (f"a{tag}b", {"regex": f"[a-c]+{tag.replace('|', '[|]')}b"}),
        (f"a {tag}b", {"grammar": f'root ::= "a " {json.dumps(tag)} "b"'}),
        (constant, {"response_format": form}),
        (text, {"response_format": {**form, "json_schema": {"name": "x", "schema": object_of}}}),
    ]
    for text, constraint in cases:
        assert completed(served, spelled(served, text), **constraint) == (text, "stop"), constraint


# Ends

ANOTHER = "x"  # the token that a file names as the end, where it should be the turn's


def files_that_mislead(family, tokenizer):
    """Changes of a model's files, each of which is missing or names another end, or none."""
    end, other = tokenizer.token_to_id(ENDS[family]), tokenizer.token_to_id(ANOTHER)
    template = template_of(family)
    cases = {
        "config names another": {"config": {"eos_token_id": other}},
        "config names none": {"config": {"eos_token_id": None}},
        "tokenizer_config names another": {"tokenizer_config": {"eos_token": ANOTHER}},
        "no tokenizer_config": {
            "tokenizer_config": None,
            "chat_template": {"chat_template": template},
        },
        "generation_config names another": {"generation_config": {"eos_token_id": other}},
        "generation_config alone": {
            "config": {"eos_token_id": None},
            "tokenizer_config": {"eos_token": ANOTHER},
            "generation_config": {"eos_token_id": [other, end]},
        },
    }
    if ENDS[family] in template:
        cases["template alone"] = {
            "config": {"eos_token_id": other},
            "tokenizer_config": {"eos_token": ANOTHER},
            "generation_config": {"eos_token_id": other},
        }
    return cases


def test_an_answer_ends_with_its_turn(family, request, tmp_path):
    """Servers with such files: each takes seconds to load, so one family in each run. `check` lists
    the end too.
    """
    every = request.config.getoption("every_tokenizer")
    if family != "llama2" and not every:
        pytest.skip("see scripts/test-tokenizers")
    end = ENDS[family]
    tokenizer = Tokenizer.from_file(str(package(family) / "tokenizer.json"))
    for name, files in files_that_mislead(family, tokenizer).items():
        path = model_of(family, tmp_path / name.replace(" ", "-"), **files)
        misled = Served(family, path)
        try:
            for route in ROUTES:
                said = told(misled, route, f"Hi{end}LEAK{end}")
                assert said.told == ("Hi", []), (name, route)
        finally:
            misled.close()
        if not every:
            continue
        check = CliRunner().invoke(main, ["check", path, "--bind", "127.0.0.1:0"]).output
        [ends] = [line for line in check.split("\n") if "answers end with" in line]
        assert f"{end} ({tokenizer.token_to_id(end)})" in ends
