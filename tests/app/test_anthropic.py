"""POST /v1/messages over a scripted backend."""

import json

import pytest

import engine
from engine.messages import Chunk, Failed, Started
from tests.scripted import ScriptedBackend, finished

URL = "/v1/messages"
HELLO = {"max_tokens": 2, "messages": [{"role": "user", "content": "Hello"}]}
USER = [{"role": "user", "content": "Hello"}]


def events(response):
    """The bodies of a stream of named events, each named by its type."""
    assert response.status_code == 200 and response.mimetype == "text/event-stream"
    bodies = []
    for event in response.get_data(as_text=True).removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        bodies.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {bodies[-1]['type']}"
    return bodies


def error_of(response, status=400):
    assert response.status_code == status and response.mimetype == "application/json"
    assert set(response.json) == {"type", "error", "request_id"}
    assert response.json["type"] == "error"
    assert response.headers["X-Request-Id"] == response.json["request_id"]
    assert set(response.json["error"]) == {"type", "message"}
    return response.json["error"]


def prompt_of(client, backend):
    [job] = backend.enqueued
    return client.models.get().tokenizer.decode(job.prompt)


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
    start, *bodies = events(client.post(URL, json={**HELLO, "stream": True}))
    assert start["type"] == "message_start"
    assert start["message"]["content"] == [] and start["message"]["stop_reason"] is None
    assert start["message"]["usage"]["output_tokens"] == 0
    input_tokens = start["message"]["usage"]["input_tokens"]
    assert bodies == [
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "text", "text": ""},
        },
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
    *_, delta, last = events(client.post(URL, json={**HELLO, "stream": True}))
    assert delta["type"] == "content_block_delta"
    assert last.pop("request_id").startswith("req_")
    assert last == {"type": "error", "error": {"type": "api_error", "message": "bad luck"}}


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
    assert make_client(backend).post(URL, json=request).status_code == 200
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
        "tools": [],
        "tool_choice": {"type": "auto"},
        "thinking": {"type": "disabled"},
        "container": None,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "x", "citations": None}]}
        ],
    }
    assert make_client(ScriptedBackend()).post(URL, json=request).status_code == 200


@pytest.mark.parameter("system")
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


@pytest.mark.parameter("metadata")
@pytest.mark.parameter("metadata.user_id")
def test_the_user_is_in_the_log(make_client, caplog):
    client = make_client(ScriptedBackend())
    with caplog.at_level("DEBUG", logger="app.generation"):
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


def blocks(*contents, role="user"):
    return {"messages": [{"role": role, "content": list(contents)}]}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"max_tokens": None}, "missing parameter: max_tokens"),
        ({"messages": None}, "missing parameter: messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["x"]}, "messages.0: must be a message of role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0: must be a message of role"),
        ({"messages": [{"role": "user"}]}, "missing parameter: messages.0.content"),
        ({"messages": [*USER, {"role": "assistant", "content": "I"}]}, "messages.1"),
        ({"messages": USER * 2049}, "messages: must be at most 2048"),
        (blocks(), "messages.0.content"),
        (blocks({"type": "image", "source": {}}), "messages.0.content.0: must be a block of type"),
        (blocks({"type": "thinking", "thinking": "x"}), "messages.0.content.0: must be a block"),
        (blocks(*[{"type": "text", "text": "x"}] * 10_001), "messages: must have at most 10000"),
        (
            blocks({"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}),
            "messages.0.content.0.content.0.type",
        ),
        ({"system": 5}, "system: input should be a valid string"),
        ({"system": [{"type": "image"}]}, "system.0.type"),
        ({"cache_control": {"type": "eternal"}}, "cache_control.type"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"temperature": 9}, "temperature"),
        ({"container": "x"}, "container is not supported"),
        ({"mcp_servers": [{}]}, "mcp_servers is not supported"),
        ({"stop": ["x"]}, "unknown parameter: stop"),
        ({"n": 2}, "unknown parameter: n"),
        ({"user": "x"}, "unknown parameter: user"),
        ({"metadata": {"name": "x"}}, "unknown parameter: metadata.name"),
        ({"stream": True, "stream_options": {}}, "unknown parameter: stream_options"),
    ],
)
def test_what_is_wrong_is_named(make_client, change, says):
    backend = ScriptedBackend()
    error = error_of(make_client(backend).post(URL, json={**HELLO, **change}))
    assert error["type"] == "invalid_request_error" and error["message"].startswith(says)
    assert not backend.enqueued


def test_what_does_not_fit_the_context_is_a_bad_request(make_client):
    response = make_client(ScriptedBackend()).post(URL, json={**HELLO, "max_tokens": 5000})
    assert "context of 2048 tokens" in error_of(response)["message"]


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", URL, 405, "invalid_request_error"),
        ("POST", f"{URL}/batches", 404, "not_found_error"),
        ("GET", "/v1/models/nothing", 404, "not_found_error"),
        ("GET", "/nothing", 404, "not_found_error"),
    ],
)
def test_errors_that_no_view_sees_have_the_shape_too(make_client, method, path, status, kind):
    client = make_client(ScriptedBackend())
    headers = {} if path.startswith(URL) else {"anthropic-version": "2023-06-01"}
    response = client.open(path, method=method, headers=headers)
    assert error_of(response, status)["type"] == kind


def test_an_unknown_model_is_not_found(make_client):
    response = make_client(ScriptedBackend()).post(URL, json={**HELLO, "model": "gpt-9"})
    assert error_of(response, 404)["type"] == "not_found_error"


def test_a_body_that_is_too_long_is_too_large(make_client):
    response = make_client(ScriptedBackend(), max_body_bytes=10).post(URL, json=HELLO)
    assert error_of(response, 413)["type"] == "request_too_large"


def test_a_full_server_limits_the_rate(make_client, gate):
    client = make_client(ScriptedBackend(gate=gate), max_batch_size=1, max_pending=0)
    with client.post(URL, json={**HELLO, "stream": True}, buffered=False):
        response = client.post(URL, json=HELLO)
        assert error_of(response, 429)["type"] == "rate_limit_error"
        assert int(response.headers["Retry-After"]) >= 1
        gate.open()


def test_a_server_that_drains_is_overloaded(make_client):
    client = make_client(ScriptedBackend())
    client.models.drain()
    response = client.post(URL, json=HELLO)
    assert error_of(response, 529)["type"] == "overloaded_error"
    assert "Retry-After" in response.headers


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
