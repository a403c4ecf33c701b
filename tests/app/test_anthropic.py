"""POST /v1/messages over a scripted backend."""

import json
import re
from dataclasses import replace

import pytest

from switchyard import engine
from switchyard.app.formats.anthropic import parse
from switchyard.engine.messages import Chunk, Failed, Started
from tests.scripted import ScriptedBackend, finished, says

pytestmark = pytest.mark.both_ways

URL = "/v1/messages"
HELLO = {"max_tokens": 2, "messages": [{"role": "user", "content": "Hello"}]}
USER = [{"role": "user", "content": "Hello"}]


CALL = {"type": "tool_use", "id": "call_1", "name": "add", "input": {"a": 1, "b": None}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "default": None}}}
TOOLS = [
    {"name": "add", "description": "Adds.", "input_schema": SCHEMA},
    {"type": "custom", "name": "sub", "input_schema": {"type": "object"}},
]


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
    *_, delta, last = events(client.post(URL, json={**HELLO, "stream": True}))
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
        "tools": [],
        "tool_choice": {"type": "auto"},
        "thinking": {"type": "disabled"},
        "output_config": {"effort": "high", "format": None},
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
    for name in ("nothing", "n"):
        assert client.post(f"{URL}/count_tokens", json={**request, name: 1}).status_code == 400


THINKS_AND_CALLS = says(
    "<think>",
    "One",
    " more.",
    "</think>",
    "Sure.",
    '<tool_call>{"name": "add", "arguments": {"a": 1,',
    ' "b": null}}</tool_call>',
)


def test_thoughts_text_and_calls_are_blocks(make_client):
    client = make_client(ScriptedBackend(THINKS_AND_CALLS))
    body = client.post(URL, json={**HELLO, "tools": TOOLS}).json
    thinking, text, call = body["content"]
    assert thinking.pop("signature")
    assert thinking == {"type": "thinking", "thinking": "One more."}
    assert text == {"type": "text", "text": "Sure."}
    assert call.pop("id")
    assert call == {"type": "tool_use", "name": "add", "input": {"a": 1, "b": None}}
    assert (body["stop_reason"], body["stop_sequence"]) == ("tool_use", None)
    assert body["usage"]["output_tokens_details"] == {"thinking_tokens": 4}


def test_streamed_blocks_follow_each_other(make_client):
    client = make_client(ScriptedBackend(THINKS_AND_CALLS))
    bodies = events(client.post(URL, json={**HELLO, "tools": TOOLS, "stream": True}))
    told = []
    for body in bodies[1:-2]:
        told.append((body["index"], body["type"].removeprefix("content_block_")))
        if body["type"] == "content_block_start":
            block = body["content_block"]
            told[-1] += (block["type"], block.get("input"), block.get("name"))
        elif body["type"] == "content_block_delta":
            told[-1] += tuple(body["delta"].values())[:2]
    [signature] = [d[3] for d in told if d[2:3] == ("signature_delta",)]
    assert signature
    assert told == [
        (0, "start", "thinking", None, None),
        (0, "delta", "thinking_delta", "One"),
        (0, "delta", "thinking_delta", " more."),
        (0, "delta", "signature_delta", signature),
        (0, "stop"),
        (1, "start", "text", None, None),
        (1, "delta", "text_delta", "Sure."),
        (1, "stop"),
        (2, "start", "tool_use", {}, "add"),
        (2, "delta", "input_json_delta", '{"a": 1,'),
        (2, "delta", "input_json_delta", ' "b": null}'),
        (2, "stop"),
    ]
    assert bodies[-2]["delta"]["stop_reason"] == "tool_use"


def test_the_input_of_a_call_that_the_limit_cuts_off_is_what_there_is(make_client):
    script = says('<tool_call>{"name": "add", "arguments": {"a": 1, "b": "tw', reason="length")
    body = make_client(ScriptedBackend(script)).post(URL, json={**HELLO, "tools": TOOLS}).json
    assert body["content"][0]["input"] == {"a": 1, "b": "tw"}
    assert body["stop_reason"] == "max_tokens"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("arguments", "stop", "ending"),
    [
        ('{"a": 7', "}", ("stop_sequence", "}")),
        ('{"a": 7}', "</tool_call>", ("tool_use", None)),
    ],
)
def test_a_stop_sequence_ends_a_message_unless_its_calls_are_complete(
    make_client, arguments, stop, ending, stream
):
    text = '<tool_call>{"name": "add", "arguments": ' + arguments
    client = make_client(ScriptedBackend(says(text, stop_reason=stop)))
    request = {**HELLO, "tools": TOOLS, "stop_sequences": [stop], "stream": stream}
    response = client.post(URL, json=request)
    if stream:
        *_, piece, _, end, _ = events(response)
        assert piece["delta"]["partial_json"] == arguments
        end = end["delta"]
    else:
        end = response.json
        assert end["content"][0]["input"] == {"a": 7}
    assert (end["stop_reason"], end["stop_sequence"]) == ending


@pytest.mark.parameter("tools", "/v1/messages")
@pytest.mark.parameter("tools[].type", "/v1/messages")
@pytest.mark.parameter("tools[].name")
@pytest.mark.parameter("tools[].description")
@pytest.mark.parameter("tools[].input_schema")
def test_tools_and_what_they_gave_are_in_the_prompt(make_client):
    backend = ScriptedBackend()
    client = make_client(backend)
    messages = [
        *USER,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "any"},
                {"type": "text", "text": "Sure."},
                {**CALL, "caller": {"type": "direct"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "call_1", "content": "three"},
                {
                    "type": "tool_result",
                    "tool_use_id": "call_2",
                    "content": [{"type": "text", "text": "no such thing"}],
                    "is_error": True,
                },
                {"type": "text", "text": "And now?"},
            ],
        },
    ]
    client.post(URL, json={**HELLO, "messages": messages, "tools": TOOLS})
    text = prompt_of(client, backend)
    assert '"description": "Adds."' in text and '"default": null' in text
    assert text.index("Sure.") < text.index('{"a": 1, "b": null}') < text.index("three")
    assert text.index("three") < text.index("Error: no such thing") < text.index("And now?")


@pytest.mark.parameter("tool_choice", "/v1/messages")
@pytest.mark.parameter("tool_choice.type", "/v1/messages")
@pytest.mark.parameter("tool_choice.disable_parallel_tool_use")
@pytest.mark.parametrize(
    ("choice", "num_calls", "is_shown"),
    [
        (None, 2, True),
        ({"type": "auto"}, 2, True),
        ({"type": "auto", "disable_parallel_tool_use": True}, 1, True),
        ({"type": "none"}, 0, False),
    ],
)
def test_a_choice_of_tools_is_kept(make_client, choice, num_calls, is_shown):
    call = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    backend = ScriptedBackend(says(call, call))
    client = make_client(backend)
    body = client.post(URL, json={**HELLO, "tools": TOOLS, "tool_choice": choice}).json
    assert [block["type"] for block in body["content"]].count("tool_use") == num_calls
    assert ("Adds." in prompt_of(client, backend)) == is_shown


def test_thoughts_that_are_sent_back_are_for_the_template(make_client, with_template):
    backend = ScriptedBackend()
    client = make_client(backend, path=with_template("{{ messages[1].reasoning_content }}"))
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "any"}
    more = {**thinking, "thinking": "So."}
    answer = {"role": "assistant", "content": [thinking, more, {"type": "text", "text": "Hi"}]}
    client.post(URL, json={**HELLO, "messages": [*USER, answer, *USER]})
    assert prompt_of(client, backend) == "Hm.\nSo."


@pytest.mark.parameter("tools[].strict", "/v1/messages")
@pytest.mark.parameter("tool_choice.name")
@pytest.mark.parametrize(
    ("choice", "must_call", "only"),
    [({"type": "any"}, True, None), ({"type": "tool", "name": "sub"}, True, "sub")],
)
def test_what_must_be_called_is_for_the_chat_to_enforce(choice, must_call, only):
    tools = [TOOLS[0], {**TOOLS[1], "strict": True}]
    chat = parse.message({**HELLO, "tools": tools, "tool_choice": choice}).chat((), False)
    assert [tool.function.strict for tool in chat.tools] == [None, True]
    assert (chat.offer.must_call, chat.offer.only) == (must_call, only)


def test_an_answer_continues_that_of_the_last_message(make_client):
    backend = ScriptedBackend(says("!"))
    client = make_client(backend)
    messages = [*USER, {"role": "assistant", "content": "Hi"}]
    body = client.post(URL, json={**HELLO, "messages": messages}).json
    assert prompt_of(client, backend).endswith("assistant\nHi")
    assert body["content"] == [{"type": "text", "text": "!"}]


SWITCH = "{{ messages[0].content }} {{ enable_thinking }} {{ reasoning_effort }}"


@pytest.mark.parameter("thinking", "/v1/messages")
@pytest.mark.parameter("thinking.type", "/v1/messages")
@pytest.mark.parameter("thinking.display")
@pytest.mark.parametrize(
    ("thinking", "switch", "has_thoughts"),
    [
        (None, "", True),
        ({"type": "adaptive"}, "True", True),
        ({"type": "adaptive", "display": "omitted"}, "True", False),
        ({"type": "adaptive", "display": "updates"}, "True", True),  # Claude Code 2.1.330
        ({"type": "disabled"}, "False", False),
    ],
)
def test_thinking_is_switched_on_and_off(
    make_client, with_template, thinking, switch, has_thoughts
):
    backend = ScriptedBackend(THINKS_AND_CALLS)
    client = make_client(backend, path=with_template(SWITCH))
    body = client.post(URL, json={**HELLO, "thinking": thinking}).json
    assert prompt_of(client, backend) == f"Hello {switch} "
    assert (body["content"][0]["type"] == "thinking") == has_thoughts


@pytest.mark.parameter("thinking.budget_tokens")
@pytest.mark.parametrize(
    ("thinking", "template", "budget"),
    [
        ({"type": "enabled", "budget_tokens": 7}, "{% if false %}<think>{% endif %}", 7),
        ({"type": "enabled", "budget_tokens": 7}, "no thoughts", None),
        ({"type": "disabled"}, "{% if false %}<think>{% endif %}", 0),
        ({"type": "disabled"}, "x{% if enable_thinking %}<think>{% endif %}", None),
        ({"type": "disabled"}, "no thoughts", None),
    ],
)
def test_thoughts_have_a_budget(make_client, with_template, thinking, template, budget):
    backend = ScriptedBackend()
    client = make_client(backend, path=with_template(template))
    assert client.post(URL, json={**HELLO, "thinking": thinking}).status_code == 200
    [job] = backend.enqueued
    assert (job.forced and job.forced.after_tokens) == budget
    count = client.post(f"{URL}/count_tokens", json={"messages": USER, "thinking": thinking})
    assert count.json == {"input_tokens": len(job.prompt)}


@pytest.mark.parameter("output_config")
@pytest.mark.parameter("output_config.effort")
@pytest.mark.parametrize(("effort", "told"), [("low", "low"), ("high", "high"), ("max", "xhigh")])
def test_the_effort_is_told_to_the_template(make_client, with_template, effort, told):
    backend = ScriptedBackend()
    client = make_client(backend, path=with_template(SWITCH))
    client.post(URL, json={**HELLO, "output_config": {"effort": effort}})
    assert prompt_of(client, backend) == f"Hello  {told}"


@pytest.mark.parameter("output_config.format")
def test_the_form_of_the_answer_constrains_the_job(make_client):
    backend = ScriptedBackend()
    form = {"type": "json_schema", "schema": {"type": "object"}}
    client = make_client(backend)
    response = client.post(URL, json={**HELLO, "output_config": {"format": form}})
    assert response.status_code == 200 and backend.enqueued[0].constraint is not None
    form["schema"] = {"type": "nothing"}
    response = client.post(URL, json={**HELLO, "output_config": {"format": form}})
    assert error_of(response)["message"].startswith("output_config.format: ")
    response = client.post(URL, json={**HELLO, "regex": r"[^\s\S]"})
    assert error_of(response)["message"].startswith("regex: ")


TEXTS = [{"type": "text", "text": "x"}] * 10_000


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
        (blocks(CALL, role="assistant"), "messages.0: results of its calls must follow"),
        (
            blocks({"type": "text", "text": "x"}, CALL, role="assistant"),
            "messages.0: results of its calls must follow",
        ),
        (blocks(CALL), "messages.0.content.0: must be a block of type"),
        ({"messages": USER * 2049}, "messages: must be at most 2048"),
        (blocks({"type": "image", "source": {}}), "messages.0.content.0: must be a block of type"),
        (blocks({"type": "thinking", "thinking": "x"}), "messages.0.content.0: must be a block"),
        (blocks(*TEXTS, TEXTS[0]), "messages: must have at most 10000"),
        (
            blocks({"type": "tool_result", "tool_use_id": "a", "content": [{"type": "audio"}]}),
            "messages.0.content.0.content.0: must be a block of type",
        ),
        (
            blocks({"type": "tool_result", "tool_use_id": "a", "content": TEXTS}),
            "messages: must have at most 10000",
        ),
        ({"system": 5}, "system: input should be a valid string"),
        ({"system": [{"type": "image"}]}, "system.0.type"),
        ({"cache_control": {"type": "eternal"}}, "cache_control.type"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"temperature": 9}, "temperature"),
        ({"tools": [{"name": "add"}]}, "missing parameter: tools.0.input_schema"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools: two have the name add"),
        ({"tool_choice": {"type": "any"}}, "tool_choice needs tools"),
        ({"tool_choice": {"type": "tool"}, "tools": TOOLS}, "tool_choice: a name is for type tool"),
        (
            {"tool_choice": {"type": "tool", "name": "x"}, "tools": TOOLS},
            "tool_choice: no tool has the name x",
        ),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"thinking": {"type": "enabled"}}, "thinking: budget_tokens is for type enabled"),
        (
            {"thinking": {"type": "disabled", "budget_tokens": 9}},
            "thinking: budget_tokens is for type enabled",
        ),
        ({"output_config": {"effort": "least"}}, "output_config.effort"),
        ({"container": "x"}, "container is not supported"),
        ({"mcp_servers": [{}]}, "mcp_servers is not supported"),
        ({"stop": ["x"]}, "unknown parameter: stop"),
        ({"n": 2}, "unknown parameter: n"),
        ({"timings": True}, "unknown parameter: timings"),
        ({"stream": True, "return_progress": True}, "unknown parameter: return_progress"),
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
    client = make_client(ScriptedBackend(), clamp_max_tokens=False)
    message = error_of(client.post(URL, json={**HELLO, "max_tokens": 5000}))["message"]
    assert re.match(
        r"input length and `max_tokens` exceed context limit: \d+ \+ 5000 > 2048", message
    )
    long = [{"role": "user", "content": "word " * 5000}]
    message = error_of(client.post(URL, json={**HELLO, "messages": long}))["message"]
    assert re.fullmatch(r"prompt is too long: \d+ tokens > 2048 maximum", message)


def test_a_prompt_that_leaves_no_room_for_an_answer_is_too_long(make_client):
    """For one token there is."""
    client = make_client(ScriptedBackend())

    def body(number):
        return {"messages": [{"role": "user", "content": "a" + " a" * number}]}

    def count(number):
        return client.post(f"{URL}/count_tokens", json=body(number)).json["input_tokens"]

    most = 2048 - count(0)
    assert count(most) == 2048
    message = error_of(client.post(URL, json={**body(most), "max_tokens": 1}))["message"]
    assert message == "prompt is too long: 2048 tokens > 2048 maximum"
    response = client.post(URL, json={**body(most - 1), "max_tokens": 1})
    assert response.json["usage"]["input_tokens"] == 2047


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


def test_a_model_that_has_failed_is_no_overload(make_client):
    """Clients try again where there is one."""
    backend = ScriptedBackend()
    client = make_client(backend)
    backend.iterate_errors = [engine.DeviceLost("the device is lost")]
    client.post(URL, json=HELLO)
    assert client.models.wait_until_stopped(20)
    assert error_of(client.post(URL, json=HELLO), 503)["type"] == "api_error"


def test_a_model_that_loads_is_told_without_its_context(make_client):
    backend = ScriptedBackend()
    backend.opening.clear()
    try:
        client = make_client(backend, wait=False)
        response = client.get("/v1/models", headers={"anthropic-version": "2023-06-01"})
        assert response.status_code == 200
        assert [model["max_tokens"] for model in response.json["data"]] == [None]
    finally:
        backend.opening.set()


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


def test_a_thread_is_refused_as_the_sdk_expects(make_client):
    """Which then sends the whole conversation by itself."""
    client = make_client(ScriptedBackend())
    response = client.post(URL, json={**HELLO, "thread": {"type": "create"}})
    assert response.status_code == 400
    assert response.json["error"]["details"] == {
        "error_code": "thread_unsupported_request",
        "unsupported": ["thread"],
    }


@pytest.mark.parameter("tools", "/v1/messages")
@pytest.mark.parameter("tools[].defer_loading", "/v1/messages")
@pytest.mark.parameter("tools[].allowed_callers", "/v1/messages")
@pytest.mark.parameter("tools[].type", "/v1/messages")
def test_tools_that_the_model_is_not_shown_are_told(make_client):
    backend = ScriptedBackend()
    client = make_client(backend)
    schema = {"type": "object"}
    tools = [
        TOOLS[0],
        {"name": "later", "input_schema": schema, "defer_loading": True},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
        {"name": "coded", "input_schema": schema, "allowed_callers": ["code_execution_20250825"]},
    ]
    found = {"type": "tool_result", "tool_use_id": "a", "content": []}
    for content, told in [
        ([], "tools[1],tools[2],tools[3]"),
        ([{"type": "tool_reference", "tool_name": "later"}], "tools[2],tools[3]"),
    ]:
        messages = [*USER, {"role": "user", "content": [{**found, "content": content}]}]
        response = client.post(URL, json={**HELLO, "messages": messages, "tools": tools})
        assert response.headers["X-Switchyard-Ignored"] == told
    tokenizer = client.models.get().tokenizer
    first, second = (tokenizer.decode(job.prompt) for job in backend.enqueued)
    assert '"add"' in first and '"later"' not in first
    assert '"later"' in second and "web_search" not in second and "coded" not in second
    choice = {"type": "tool", "name": "web_search"}
    refused = client.post(URL, json={**HELLO, "tools": tools, "tool_choice": choice})
    assert refused.status_code == 400


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


def test_images_of_tools_are_named_to_the_model(make_client):
    backend = ScriptedBackend()
    client = make_client(backend)
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "a"}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [image]}
    messages = [*USER, {"role": "user", "content": [result]}]
    response = client.post(URL, json={**HELLO, "messages": messages})
    assert response.headers["X-Switchyard-Ignored"] == "messages.content.image"
    assert "an image" in prompt_of(client, backend)


def test_an_effort_of_one_turn_is_taken_and_told(make_client):
    client = make_client(ScriptedBackend(says("Hi")))
    system = {"role": "system", "content": "Be brief.", "output_config": {"effort": "medium"}}
    body = {**HELLO, "messages": [*HELLO["messages"], system]}
    response = client.post(URL, json=body)
    assert response.status_code == 200, response.text
    assert response.headers["X-Switchyard-Ignored"] == "messages.output_config"
    system["output_config"] = {"format": {"type": "json_schema", "schema": {}}}
    assert client.post(URL, json=body).status_code == 400
