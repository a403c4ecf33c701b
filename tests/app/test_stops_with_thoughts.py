"""A client's stops end an answer, never its thoughts, on each route, streamed and whole."""

import itertools
import json
import pathlib

import pytest

from tests.app.taught import CHATS, LIMITS, OLLAMA, ROUTES, Teacher, form_of, told, tools_of
from tests.conftest import DEMO
from tests.layouts import LAYOUTS, lay_out

OPENED = "{% if add_generation_prompt %}{{ '<think>\\n' }}{% endif %}"
THOUGHTS = "It is a. So b.\n</think>"
FORM = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}
ARGUMENTS = '{"a": "c. d", "b": "."}'
CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>'

# How a client asks for an answer without its thoughts. The other two routes have no such parameter.
WITHOUT_THOUGHTS = {
    "/v1/chat/completions": {"include_reasoning": False},
    "/v1/messages": {"thinking": {"type": "adaptive", "display": "omitted"}},
    OLLAMA: {"include_reasoning": False},
}


@pytest.fixture(scope="module", params=LAYOUTS)
def paths(request, tmp_path_factory):
    """Paths of a model that opens its thoughts itself, and of one whose template opens them."""
    folder = tmp_path_factory.mktemp("models")
    paths = [lay_out(request.param, DEMO, folder / name) for name in ("own", "opened")]
    file = pathlib.Path(paths[1]) / "tokenizer_config.json"
    config = json.loads(file.read_text())
    config["chat_template"] += OPENED
    file.write_text(json.dumps(config))
    return paths


def stops_of(teacher, route, text="."):
    """Each way in which a client of the route ends an answer before `text`."""
    yield {"stop_token_ids": [*teacher.model.tokenizer._ordinary(text)]}
    yield {"stop_sequences" if route == "/v1/messages" else "stop": [text]}


@pytest.mark.parametrize("route", [*CHATS, OLLAMA])
@pytest.mark.parametrize("is_opened", [False, True])
def test_a_stop_ends_the_answer_and_not_its_thoughts(make_client, paths, is_opened, route):
    teacher = Teacher(make_client, paths[is_opened])
    cases = [("\n\nYes", ". No.", {}), ('{"b": "c', '. d", "a": ""}', form_of(route, FORM))]
    thoughts = THOUGHTS if is_opened else f"<think>\n{THOUGHTS}"
    options = [{}, WITHOUT_THOUGHTS[route]] if route in WITHOUT_THOUGHTS else [{}]
    for (kept, rest, form), stops, option, streams in itertools.product(
        cases, stops_of(teacher, route), options, (False, True)
    ):
        body = {**stops, **form, **option}
        response = teacher.post(route, streams, thoughts + kept + rest, **body)
        assert told(route, streams, response) == (kept.strip(), []), (body, streams)
        assert (" So" in response.text) != bool(option), (body, streams)  # one token of thoughts


@pytest.mark.parametrize("route", CHATS)
def test_a_stop_ends_no_call_and_the_beginning_of_a_call_is_no_text(make_client, paths, route):
    teacher = Teacher(make_client, paths[False], tool_format="hermes")
    tools, whole = tools_of(route, FORM), f"<think>\n{THOUGHTS}{CALL}"
    may = tools_of(route, FORM, must=False)
    within = [*stops_of(teacher, route, "ool_c")]  # of the tag: by tokens, and as a whole
    for streams in (False, True):
        for stops in [*stops_of(teacher, route), *within]:
            for more in (tools, may):
                told = teacher.ask(route, streams, whole, **more, **stops)
                assert told == ("", [("get_weather", ARGUMENTS)]), (stops, streams)
        assert teacher.ask(route, streams, "Yes_no", **may, **within[0]) == ("Yes", [])
        for number in (1, 12, 16):  # tokens, until the call is cut
            limit = {LIMITS.get(route, "max_tokens"): number}
            text, calls = teacher.ask(route, streams, CALL, **tools, **limit)
            assert not text and calls in ([], [("get_weather", "")]), (number, streams)


def test_a_stop_counts_everywhere_in_a_completion_which_has_no_thoughts(make_client, paths):
    teacher, route = Teacher(make_client, paths[0]), ROUTES[-1]
    for stops, streams in itertools.product(stops_of(teacher, route), (False, True)):
        text, _ = teacher.ask(route, streams, f"<think>\n{THOUGHTS}Yes.", **stops)
        assert text.removeprefix("<think>") == "\nIt is a"
        told = teacher.ask(route, streams, '{"b": "c. d"}', **stops, **form_of(route, FORM))
        assert told == ('{"b": "c', [])
