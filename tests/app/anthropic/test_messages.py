"""/v1/messages: Anthropic's API."""

from dataclasses import replace

import pytest

from switchyard import engine
from switchyard.engine.messages import Chunk, Failed, Started
from tests.app.anthropic.asked import HELLO, TOOLS, URL, USER, error_of
from tests.app.conftest import named_events, prompt_of
from tests.scripted import ScriptedBackend, finished, says

pytestmark = pytest.mark.both_ways


@pytest.mark.parameter("max_tokens", "/v1/messages")
def test_a_message_has_the_shape_of_the_api(make_client):
    body = make_client(ScriptedBackend()).post(URL, json=HELLO).json
    assert body.pop("id").startswith("msg_")
    usage = body.pop("usage")
    assert usage.pop("input_tokens") > 5
    assert usage == {
        "output_tokens": 2,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens_details": {"thinking_tokens": 0},
    }
    assert body == {
        "type": "message",
        "role": "assistant",
        "model": "scripted",
        "content": [{"type": "text", "text": "0 1 "}],
        "stop_reason": "max_tokens",
        "stop_sequence": None,
    }


def test_a_stream_has_the_events_of_the_api_in_order(make_client):
    client = make_client(ScriptedBackend())
    start, *bodies = named_events(client.post(URL, json={**HELLO, "stream": True}))
    assert start["type"] == "message_start"
    assert start["message"]["content"] == [] and start["message"]["stop_reason"] is None
    assert start["message"]["usage"]["output_tokens"] == 0
    input_tokens = start["message"]["usage"]["input_tokens"]
    assert bodies == [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *(
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "text_delta", "text": text},
            }
            for text in ("0 ", "1 ")
        ),
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "max_tokens", "stop_sequence": None},
            "usage": {
                "input_tokens": input_tokens,
                "output_tokens": 2,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0,
                "output_tokens_details": {"thinking_tokens": 0},
            },
        },
        {"type": "message_stop"},
    ]


def test_tokens_from_the_cache_are_counted_apart(make_client):
    def script(job):
        yield Started(job.identifier)
        yield engine.Finished(job.identifier, "stop", len(job.prompt), 0, 4)

    backend = ScriptedBackend(script)
    body = make_client(backend).post(URL, json=HELLO).json
    assert body["usage"]["cache_read_input_tokens"] == 4
    assert body["usage"]["input_tokens"] == len(backend.enqueued[0].prompt) - 4
    assert body["content"] == [] and body["stop_reason"] == "end_turn"


def test_a_stream_without_news_is_pinged_behind_its_start(make_client, gate):
    client = make_client(ScriptedBackend(gate=gate), heartbeat=0.05)
    response = client.post(URL, json={**HELLO, "stream": True})
    frames = iter(response.response)
    assert b"event: message_start" in next(frames)
    assert next(frames) == b'event: ping\ndata: {"type":"ping"}\n\n'
    gate.open()
    assert b"".join(frames).endswith(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')


def test_a_stream_that_fails_ends_with_an_error_event(make_client):
    def script(job):
        yield Started(job.identifier)
        yield Chunk(job.identifier, "x", (0,))
        yield Failed(job.identifier, engine.JobFailed("bad luck"))

    client = make_client(ScriptedBackend(script))
    *_, delta, last = named_events(client.post(URL, json={**HELLO, "stream": True}))
    assert delta["type"] == "content_block_delta"
    assert last.pop("request_id").startswith("req_")
    assert last == {"type": "error", "error": {"type": "api_error", "message": "bad luck"}}


def test_the_stop_sequence_that_ended_a_message_is_told(make_client):
    def script(job):
        yield Chunk(job.identifier, "x", (0,))
        yield replace(finished(job, 1, "stop"), stop_reason="b")

    client = make_client(ScriptedBackend(script))
    body = client.post(URL, json={**HELLO, "stop_sequences": ["a", "b"]}).json
    assert (body["stop_reason"], body["stop_sequence"]) == ("stop_sequence", "b")
    body = client.post(URL, json=HELLO).json  # it was something else that is called so
    assert (body["stop_reason"], body["stop_sequence"]) == ("end_turn", None)


def test_a_message_that_fails_is_an_error(make_client):
    def script(job):
        yield Failed(job.identifier, engine.JobFailed("bad luck"))

    response = make_client(ScriptedBackend(script)).post(URL, json=HELLO)
    assert error_of(response, 500) == {"type": "api_error", "message": "bad luck"}
    assert response.headers["x-should-retry"] == "false"


def test_an_operator_who_ends_a_message_leaves_it_without_a_reason(make_client):
    def script(job):
        yield Started(job.identifier)
        yield finished(job, 0, "cancelled")

    body = make_client(ScriptedBackend(script)).post(URL, json=HELLO).json
    assert body["stop_reason"] is None


@pytest.mark.parameter("stop_sequences")
def test_parameters_reach_the_job(make_client):
    backend = ScriptedBackend()
    request = {
        **HELLO,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "stop_sequences": ["a", "b"],
        "seed": 3,
        "min_p": 0.1,
        "priority": 2,
    }
    assert make_client(backend, max_priority=2).post(URL, json=request).status_code == 200
    [job] = backend.enqueued
    sampling = job.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 7)
    assert (sampling.seed, sampling.min_p, job.priority) == (3, 0.1, 2)
    assert job.stop_strings == ("a", "b") and job.max_new_tokens == 2


@pytest.mark.parameter("cache_control")
def test_what_asks_for_nothing_is_taken(make_client):
    request = {
        **HELLO,
        "model": "scripted",
        "metadata": {"user_id": "somebody"},
        "cache_control": {"type": "ephemeral", "ttl": "1h"},
        "service_tier": "auto",
        "tools": [{**TOOLS[0], "x": None}],
        "tool_choice": {"type": "auto", "x": None},
        "thinking": {"type": "disabled", "x": None},
        "output_config": {"effort": "high", "format": None},
        "container": None,
        "system": [
            {
                "type": "text",
                "text": "Be brief.",
                "cache_control": {"type": "ephemeral"},
                "citations": None,
            }
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "x", "citations": None}]}
        ],
    }
    assert make_client(ScriptedBackend()).post(URL, json=request).status_code == 200


@pytest.mark.parameter("system", "/v1/messages")
@pytest.mark.parameter("messages", "/v1/messages")
def test_turns_and_the_system_prompt_go_through_the_models_template(make_client):
    backend = ScriptedBackend()
    client = make_client(backend)
    text = {"type": "text", "text": "two"}
    messages = [
        {"role": "user", "content": "one"},
        {"role": "user", "content": [text, {"type": "text", "text": "three"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "user", "content": "Bye"},
    ]
    request = {
        **HELLO,
        "system": [{"type": "text", "text": "Be brief."}, text],
        "messages": messages,
    }
    client.post(URL, json=request)
    assert prompt_of(client, backend) == (
        "system\nBe brief.\ntwo\nuser\none\ntwo\nthree\nassistant\nHi\nuser\nBye\nassistant\n"
    )


@pytest.mark.parameter("metadata", "/v1/messages")
@pytest.mark.parameter("metadata.user_id")
def test_the_user_is_in_the_log(make_client, caplog):
    client = make_client(ScriptedBackend())
    with caplog.at_level("DEBUG", logger="switchyard.app.delivery.submit"):
        client.post(URL, json={**HELLO, "metadata": {"user_id": "somebody"}})
    assert "'somebody'" in caplog.text


def test_tokens_are_counted_without_a_job(make_client):
    backend = ScriptedBackend()
    client = make_client(backend)
    request = {"model": "scripted", "system": "Be brief.", "messages": USER}
    response = client.post(f"{URL}/count_tokens", json=request)
    assert response.status_code == 200 and not backend.enqueued
    client.post(URL, json={**request, "max_tokens": 1})
    assert response.json == {"input_tokens": len(backend.enqueued[0].prompt)}


def test_tokens_are_counted_of_whatever_a_message_takes(make_client):
    """What counts for nothing is told, and what is unknown refused."""
    client = make_client(ScriptedBackend())
    more = {"metadata": {"user_id": "u"}, "max_tokens": 32000, "stream": True, "temperature": 1}
    request = {"messages": USER}
    plain = client.post(f"{URL}/count_tokens", json=request)
    response = client.post(f"{URL}/count_tokens", json={**request, **more})
    assert (response.status_code, response.json) == (200, plain.json)
    told = response.headers["X-Switchyard-Ignored"].split(",")
    assert sorted(told) == sorted(more)
    for name in ("nothing", "timings"):
        assert client.post(f"{URL}/count_tokens", json={**request, name: 1}).status_code == 400


def test_tokens_are_counted_by_each_name_of_how_to_think(make_client, with_template):
    template = "{% if enable_thinking is false %}Do not think.{% endif %}{{ reasoning_effort }}."
    backend = ScriptedBackend()
    client = make_client(backend, path=with_template(template))
    lengths = []
    for more in (
        {},
        *({name: {"enable_thinking": False}} for name in ("template_vars", "chat_template_kwargs")),
        {"think": False, "reasoning_effort": "high"},
    ):
        counted = client.post(f"{URL}/count_tokens", json={"messages": USER, **more})
        assert "X-Switchyard-Ignored" not in counted.headers
        client.post(URL, json={**HELLO, "messages": USER, **more})
        lengths.append(len(backend.enqueued[-1].prompt))
        assert counted.json == {"input_tokens": lengths[-1]}
    assert lengths[0] < lengths[1] == lengths[2] < lengths[3]


def test_an_answer_continues_that_of_the_last_message(make_client):
    backend = ScriptedBackend(says("!"))
    client = make_client(backend)
    messages = [*USER, {"role": "assistant", "content": "Hi"}]
    body = client.post(URL, json={**HELLO, "messages": messages}).json
    assert prompt_of(client, backend).endswith("assistant\nHi")
    assert body["content"] == [{"type": "text", "text": "!"}]


def test_models_are_told_in_the_shape_of_who_asks(make_client):
    client = make_client(ScriptedBackend())
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


def test_turns_that_differ_in_the_clients_accounts_share_the_cache(make_client):
    backend = ScriptedBackend()
    client = make_client(backend)
    for accounts in ("0a1b2", "77fe0"):
        billing = f"x-anthropic-billing-header: cc_version=2.1; cch={accounts};"
        system = [{"type": "text", "text": billing}, {"type": "text", "text": "Be brief."}]
        response = client.post(URL, json={**HELLO, "system": system})
        assert response.headers["X-Switchyard-Ignored"] == "system[0]"
    first, second = backend.enqueued
    assert first.prompt == second.prompt
    assert client.post(URL, json={**HELLO, "system": []}).status_code == 200
    system = [{"type": "text", "text": "Be brief."}, {"type": "text", "text": billing}]
    client.post(URL, json={**HELLO, "system": system})
    assert "billing" in client.models.get().tokenizer.decode(backend.enqueued[-1].prompt)
