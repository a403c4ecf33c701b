"""/v1/messages: Anthropic's API."""

import pytest

from switchyard import engine
from switchyard.engine.messages import Chunk, Failed, Started
from tests.app.anthropic.asked import HELLO, TOOLS, URL, USER, error_of, text, turn
from tests.app.conftest import named_events
from tests.scripted import ScriptedBackend, says

pytestmark = pytest.mark.both_ways
COUNT = f"{URL}/count_tokens"

USAGE = {
    "output_tokens": 2,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
    "output_tokens_details": {"thinking_tokens": 0},
}


@pytest.mark.parameter("max_tokens", "/v1/messages")
def test_a_message_has_the_shape_of_the_api(message):
    body = message(HELLO, backend=ScriptedBackend()).response.json
    assert body.pop("id").startswith("msg_")
    assert body["usage"].pop("input_tokens") > 5
    assert body == {
        "type": "message",
        "role": "assistant",
        "model": "scripted",
        "content": [text("0 1 ")],
        "stop_reason": "max_tokens",
        "stop_sequence": None,
        "usage": USAGE,
    }


def test_a_stream_has_the_events_of_the_api_in_order(message):
    asked = message({**HELLO, "stream": True}, backend=ScriptedBackend())
    start, *bodies = named_events(asked.response)
    assert start["type"] == "message_start"
    assert start["message"]["content"] == [] and start["message"]["stop_reason"] is None
    assert start["message"]["usage"]["output_tokens"] == 0
    input_tokens = start["message"]["usage"]["input_tokens"]
    block = {"index": 0, "content_block": text("")}
    pieces = [{"index": 0, "delta": {"type": "text_delta", "text": one}} for one in ("0 ", "1 ")]
    assert bodies == [
        {"type": "content_block_start", **block},
        *({"type": "content_block_delta", **piece} for piece in pieces),
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "max_tokens", "stop_sequence": None},
            "usage": {"input_tokens": input_tokens, **USAGE},
        },
        {"type": "message_stop"},
    ]


def test_tokens_from_the_cache_are_counted_apart(message):
    def script(job):
        yield Started(job.identifier)
        yield engine.Finished(job.identifier, "stop", len(job.prompt), 0, 4)

    asked = message(HELLO, backend=ScriptedBackend(script))
    body = asked.response.json
    assert body["usage"]["cache_read_input_tokens"] == 4
    assert body["usage"]["input_tokens"] == len(asked.job.prompt) - 4
    assert body["content"] == [] and body["stop_reason"] == "end_turn"


def test_a_stream_without_news_is_pinged_behind_its_start(make_client, gate):
    client = make_client(ScriptedBackend(gate=gate), heartbeat=0.05)
    response = client.post(URL, json={**HELLO, "stream": True})
    frames = iter(response.response)
    assert b"event: message_start" in next(frames)
    assert next(frames) == b'event: ping\ndata: {"type":"ping"}\n\n'
    gate.open()
    assert b"".join(frames).endswith(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')


def fails(*texts):
    def script(job):
        yield Started(job.identifier)
        yield from (Chunk(job.identifier, one, (0,)) for one in texts)
        yield Failed(job.identifier, engine.JobFailed("bad luck"))

    return ScriptedBackend(script)


def test_a_stream_that_fails_ends_with_an_error_event(message):
    asked = message({**HELLO, "stream": True}, backend=fails("x"))
    *_, delta, last = named_events(asked.response)
    assert delta["type"] == "content_block_delta"
    assert last.pop("request_id").startswith("req_")
    assert last == {"type": "error", "error": {"type": "api_error", "message": "bad luck"}}


def test_a_message_that_fails_is_an_error(message):
    response = message(HELLO, backend=fails()).response
    assert error_of(response, 500) == {"type": "api_error", "message": "bad luck"}
    assert response.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("more", "script", "reason", "sequence"),
    [
        ({"stop_sequences": ["a", "b"]}, says("x", stop_reason="b"), "stop_sequence", "b"),
        # It was something else that is called so.
        ({}, says("x", stop_reason="b"), "end_turn", None),
        ({}, says(reason="cancelled"), None, None),  # an operator has ended it
    ],
)
def test_what_ended_a_message_is_told(message, more, script, reason, sequence):
    body = message({**HELLO, **more}, backend=ScriptedBackend(script)).response.json
    assert (body["stop_reason"], body["stop_sequence"]) == (reason, sequence)


@pytest.mark.parameter("stop_sequences")
def test_parameters_reach_the_job(message):
    sampling = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "seed": 3, "min_p": 0.1}
    more = {"stop_sequences": ["a", "b"], "priority": 2}
    job = message({**HELLO, **sampling, **more}, max_priority=2).job
    assert {name: getattr(job.sampling, name) for name in sampling} == sampling
    assert (job.priority, job.stop_strings, job.max_new_tokens) == (2, ("a", "b"), 2)


@pytest.mark.parameter("cache_control")
def test_what_asks_for_nothing_is_taken(message):
    cache_control = {"type": "ephemeral", "ttl": "1h"}
    block = {**text("x"), "citations": None}
    request = {
        "model": "scripted",
        "metadata": {"user_id": "somebody"},
        "cache_control": cache_control,
        "service_tier": "auto",
        "tools": [{**TOOLS[0], "x": None}],
        "tool_choice": {"type": "auto", "x": None},
        "thinking": {"type": "disabled", "x": None},
        "output_config": {"effort": "high", "format": None},
        "container": None,
        "system": [{**block, "cache_control": {"type": "ephemeral"}}],
        "messages": [turn("user", block)],
    }
    assert message({**HELLO, **request}).response.status_code == 200


@pytest.mark.parameter("system messages", "/v1/messages")
def test_turns_and_the_system_prompt_go_through_the_models_template(message):
    messages = [
        {"role": "user", "content": "one"},
        turn("user", text("two"), text("three")),
        turn("assistant", text("Hi")),
        {"role": "user", "content": "Bye"},
    ]
    system = [text("Be brief."), text("two")]
    assert message({**HELLO, "system": system, "messages": messages}).prompt == (
        "system\nBe brief.\ntwo\nuser\none\ntwo\nthree\nassistant\nHi\nuser\nBye\nassistant\n"
    )


@pytest.mark.parameter("metadata", "/v1/messages")
@pytest.mark.parameter("metadata.user_id")
def test_the_user_is_in_the_log(message, caplog):
    with caplog.at_level("DEBUG", logger="switchyard.app.delivery.submit"):
        message({**HELLO, "metadata": {"user_id": "somebody"}})
    assert "'somebody'" in caplog.text


def test_tokens_are_counted_of_whatever_a_message_takes(message):
    """Without a job. What counts for nothing is told, and what is unknown refused."""
    more = {"metadata": {"user_id": "u"}, "max_tokens": 32000, "stream": True, "temperature": 1}
    request = {"model": "scripted", "system": "Be brief.", "messages": USER}
    plain = message(request, url=COUNT)
    asked = plain.again({**request, **more})
    assert (asked.response.status_code, asked.response.json) == (200, plain.response.json)
    assert sorted(asked.ignored.split(",")) == sorted(more)
    for name in ("nothing", "timings"):
        assert asked.again({**request, name: 1}).response.status_code == 400
    assert not asked.backend.enqueued
    asked = asked.again({**request, "max_tokens": 1}, URL)
    assert plain.response.json == {"input_tokens": len(asked.job.prompt)}


def test_tokens_are_counted_by_each_name_of_how_to_think(message):
    template = "{% if enable_thinking is false %}Do not think.{% endif %}{{ reasoning_effort }}."
    lengths = []
    for more in (
        {},
        *({name: {"enable_thinking": False}} for name in ("template_vars", "chat_template_kwargs")),
        {"think": False, "reasoning_effort": "high"},
    ):
        asked = message({**HELLO, **more}, template=template)
        counted = asked.again({"messages": USER, **more}, COUNT)
        lengths.append(len(asked.job.prompt))
        assert (counted.response.json, counted.ignored) == ({"input_tokens": lengths[-1]}, None)
    assert lengths[0] < lengths[1] == lengths[2] < lengths[3]


def test_an_answer_continues_that_of_the_last_message(message):
    messages = [*USER, {"role": "assistant", "content": "Hi"}]
    asked = message({**HELLO, "messages": messages}, "!")
    assert asked.prompt.endswith("assistant\nHi")
    assert asked.response.json["content"] == [text("!")]


def test_models_are_told_in_the_shape_of_who_asks(client):
    headers = {"anthropic-version": "2023-06-01"}
    body = client.get("/v1/models", headers=headers).json
    assert (body["first_id"], body["last_id"], body["has_more"]) == ("scripted", "scripted", False)
    [model] = body["data"]
    assert client.get("/v1/models/scripted", headers=headers).json == model
    assert (model["type"], model["id"], model["max_input_tokens"]) == ("model", "scripted", 2048)
    assert client.get("/v1/models").json["object"] == "list"


def test_clients_find_the_identifier_of_the_request_where_they_look(make_client):
    headers = {"anthropic-version": "2023-06-01", "X-Request-Id": "mine"}
    response = make_client(ScriptedBackend()).post(URL, json=HELLO, headers=headers)
    assert response.headers["request-id"] == "mine"


def test_turns_that_differ_in_the_clients_accounts_share_the_cache(message):
    brief = text("Be brief.")
    prompts = set()
    for accounts in ("0a1b2", "77fe0"):
        billing = text(f"x-anthropic-billing-header: cc_version=2.1; cch={accounts};")
        asked = message({**HELLO, "system": [billing, brief]})
        assert asked.ignored == "system[0]"
        prompts.add(asked.prompt)
    assert len(prompts) == 1
    assert asked.again({**HELLO, "system": []}).response.status_code == 200
    assert "billing" in asked.again({**HELLO, "system": [brief, billing]}).prompt
