"""The embedded model over sockets: what a newcomer sees."""

import json
import random
import re
import string

import pytest
from werkzeug.wrappers import Response

from tests.app.taught import CHATS, body_of, form_of, told
from tests.app.test_unspoiled import CITY, SCORE
from tests.conftest import DEMO
from tests.live.conftest import shared_server
from tests.live.test_serving import in_threads

LETTERS = string.ascii_uppercase + string.digits
CHAT = "/v1/chat/completions"
demo = shared_server(model=DEMO, max_batch_size=64)


def say(server, text, **more):
    body = {"messages": [{"role": "user", "content": text}], "temperature": 0, **more}
    response = server.post(CHAT, body)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


def streamed(server, text, **more):
    """The whole text of a streamed answer."""
    messages = [{"role": "user", "content": text}]
    *bodies, done = server.begin(CHAT, messages=messages, **more)
    choices = [choice for body in bodies for choice in json.loads(body)["choices"]]
    assert done == b"[DONE]"
    assert [one["finish_reason"] for one in choices] == [None] * (len(choices) - 1) + ["stop"]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def test_64_clients_that_ask_for_64_codes_each_get_their_own_alone(demo, pytestconfig):
    """Streamed and sampled, in rounds: nobody sees a piece of what another was told. Coolly: at
    0.7 so small a model errs by itself once in some thousand such answers.
    """
    r = random.Random(0)
    for _ in range(pytestconfig.option.rounds):
        codes = ["".join(r.choices(LETTERS, k=12)) for _ in range(64)]
        asked = [f"Repeat this code exactly: {code}" for code in codes]
        texts = in_threads(lambda text: streamed(demo, text, temperature=0.3), asked)
        for code, text in zip(codes, texts, strict=True):
            assert code in text
            assert not any(other in text for other in codes if other != code)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Hello! What can you do?", r"^(Hello|Hi)! .*I can .* and .*"),
        ("What is the capital of France?", "Paris"),
        ("What is 17 + 25?", "42"),
        ("Which day comes after Monday?", "Tuesday"),
        ("Who are you?", "Switchyard"),
        ("Tell me about quantum physics.", "know"),
        ("Tell me a story about a fox.", "fox"),
    ],
)
def test_it_answers_questions(demo, question, answer):
    choice = say(demo, question)
    assert re.search(answer, choice["message"]["content"]) and choice["finish_reason"] == "stop"


def test_it_answers_in_json(demo):
    text = say(demo, 'Give me a JSON object with name "Anna" and age 31.')
    assert json.loads(text["message"]["content"]) == {"name": "Anna", "age": 31}


def test_it_remembers_what_was_said_and_keeps_to_the_system_message(demo):
    messages = [
        {"role": "system", "content": "You are a pirate."},
        {"role": "user", "content": "My name is Priya."},
        {"role": "assistant", "content": "Arr! Nice to meet you, Priya! Yo ho ho!"},
        {"role": "user", "content": "What is the capital of Japan?"},
        {"role": "assistant", "content": "Arr! The capital of Japan is Tokyo. Yo ho ho!"},
        {"role": "user", "content": "What is my name?"},
    ]
    text = say(demo, "", messages=messages)["message"]["content"]
    assert "Priya" in text and "Arr!" in text


def test_once_upon_a_time_goes_on_as_a_story(demo):
    body = {"prompt": "Once upon a time", "max_tokens": 300, "temperature": 0}
    choice = demo.post("/v1/completions", body).json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["text"].count(".") >= 4


def test_answers_of_different_lengths_end_by_themselves_in_one_batch(demo):
    asked = ["Tell me a story.", "Hi!", "Count from 1 to 20.", "What is 2 + 2?"] * 8
    choices = in_threads(lambda text: say(demo, text), asked)
    assert {choice["finish_reason"] for choice in choices} == {"stop"}
    lengths = [len(choice["message"]["content"]) for choice in choices]
    assert min(lengths) < 40 and max(lengths) > 300


def test_a_tool_that_must_be_called_is_called(demo):
    """By a model that knows nothing of tools."""
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"enum": [1, 2, 3]}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }
    function = {"name": "get_weather", "description": "The weather.", "parameters": schema}
    tools = [{"type": "function", "function": function}]
    more = {"tools": tools, "parallel_tool_calls": False, "temperature": 0.7}
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        answer = say(demo, "How is the weather in Rome?", tool_choice=choice, **more)
        assert answer["finish_reason"] == "tool_calls"
        [call] = answer["message"]["tool_calls"]
        arguments = json.loads(call["function"]["arguments"])
        assert arguments["city"] in ("Rome", "Oslo") and arguments["days"] in (1, 2, 3)


def send(server, route, streams, **more):
    answer = server.post(route, body_of(route, streams, **more))
    kind = answer.headers["Content-Type"]
    return Response(answer.content, answer.status_code, content_type=kind)


each_route = pytest.mark.parametrize(
    ("route", "streams"), [(route, streams) for route in CHATS for streams in (False, True)]
)


@each_route
def test_a_schema_leaves_the_models_order_of_properties(demo, route, streams):
    """Which is not the schema's here."""
    free = {"type": "json_object"}
    free = {"text": {"format": free}} if route == "/v1/responses" else {"response_format": free}
    said = "Give JSON with age 30 and city Rome."
    for form in (form_of(route, CITY), free):
        response = send(demo, route, streams, said=said, **form)
        assert told(route, streams, response) == ('{"age": 30, "city": "Rome"}', []), form


@each_route
def test_no_draw_ends_where_no_name_is_left(demo, route, streams):
    def draw(seed):
        more = {"said": "Give JSON with a score.", "temperature": 1, "seed": seed}
        return send(demo, route, streams, **more, **form_of(route, SCORE))

    for response in in_threads(draw, range(40)):
        text, _ = told(route, streams, response)
        assert json.loads(text) in [{"score": score} for score in range(0, 21, 5)]
