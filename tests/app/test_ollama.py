"""Ollama's routes, over a scripted backend."""

import json

import pytest

from switchyard import engine
from switchyard.engine.messages import Chunk, ModelInfo, Started
from tests.app.conftest import fails, prompt_of
from tests.scripted import ScriptedBackend, says

pytestmark = pytest.mark.both_ways

CHAT, GENERATE = "/api/chat", "/api/generate"
USER = {"role": "user", "content": "Hello"}
HELLO = {"messages": [USER]}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'


def lines(response):
    assert response.status_code == 200, response.text
    assert response.mimetype == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


def asked(client, path, body):
    """The whole answer, and the joined lines of the stream, which is the default."""
    whole = client.post(path, json={**body, "stream": False})
    assert whole.status_code == 200, whole.text
    *parts, last = lines(client.post(path, json=body))
    assert [part["done"] for part in parts] == [False] * len(parts) and last["done"]
    return whole.json, parts, last


@pytest.mark.parameter("prompt", "stream", "num_predict", "/api/generate")
@pytest.mark.parameter("messages", "messages[].content", "/api/chat")
@pytest.mark.parametrize(
    ("path", "body"), [(CHAT, HELLO), (GENERATE, {"prompt": "Hello"})], ids=["chat", "generate"]
)
def test_a_stream_is_the_whole_in_lines(client, path, body):
    whole, parts, last = asked(client, path, {**body, "num_predict": 3})
    of = (lambda b: b["message"]["content"]) if path == CHAT else lambda b: b["response"]
    assert "".join(map(of, parts)) == of(whole) == "0 1 2 " and of(last) == ""
    for end in (whole, last):
        assert end["done_reason"] == "length" and end["eval_count"] == 3
        assert end["prompt_eval_count"] == len(client.backend.enqueued[0].prompt)
        assert end["total_duration"] >= end["eval_duration"] >= 0
        assert type(end["load_duration"]) is int and end["created_at"].endswith("Z")
    assert ("context" in last) == (path == GENERATE)


@pytest.mark.parameter("options", "temperature", "top_k", "top_p", "/api/generate")
@pytest.mark.parameter("repeat_penalty", "repeat_last_n", "/api/generate")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "repetition_penalty": 1.1}),
        ({}, {"repetition_range": 64, "seed": None, "min_p": 0}),
        ({"temperature": 0, "top_k": 0, "top_p": 1}, {"temperature": 0, "top_k": 0, "top_p": 1}),
        ({"repeat_penalty": 1.3, "repeat_last_n": -1}, {"repetition_range": -1}),
        ({"repeat_last_n": 0}, {"repetition_penalty": 1}),
        ({"repeat_penalty": 1.3, "repeat_last_n": 0}, {"repetition_penalty": 1}),
        ({"seed": 7, "min_p": 0.1, "typical_p": 0.5}, {"seed": 7, "min_p": 0.1, "typical_p": 0.5}),
        ({"tfs_z": 0.5, "presence_penalty": 1}, {"tfs": 0.5, "presence_penalty": 1}),
        ({"mirostat": 2, "mirostat_tau": 3, "mirostat_eta": 0.2}, {"mirostat": True}),
        ({"frequency_penalty": 1, "logit_bias": None}, {"frequency_penalty": 1}),
        ({"logit_bias": "7:-100, 5: 1.5"}, {"logit_bias": ((7, -100), (5, 1.5))}),
    ],
    ids=str,
)
def test_options_reach_the_engine_beside_the_defaults_of_ollama(client, options, expected):
    body = {"prompt": "x", "stream": False, "options": {"num_predict": 2, **options}}
    response = client.post(GENERATE, json=body)
    assert response.status_code == 200, response.text
    assert "X-Switchyard-Ignored" not in response.headers
    [job] = client.backend.enqueued
    assert {field: getattr(job.sampling, field) for field in expected} == expected
    assert job.max_new_tokens == 2


def test_a_preset_goes_before_the_defaults_and_options_before_a_preset(make_client):
    client = make_client(presets={"cold": {"temperature": 0.1, "top_k": 3}})
    body = {**HELLO, "preset": "cold", "options": {"top_k": 5, "stop": ["x"]}}
    lines(client.post(CHAT, json=body))
    [job] = client.backend.enqueued
    assert (job.sampling.temperature, job.sampling.top_k, job.sampling.top_p) == (0.1, 5, 0.9)
    assert job.stop_strings == ("x",)


@pytest.mark.parametrize("number", [-1, -2])
def test_no_limit_is_the_rest_of_the_context(make_client, number):
    backend = ScriptedBackend(says("x"))
    lines(make_client(backend).post(CHAT, json={**HELLO, "options": {"num_predict": number}}))
    [job] = backend.enqueued
    assert len(job.prompt) + job.max_new_tokens == 2048


def test_what_concerns_hardware_or_is_of_no_use_is_taken_and_told(make_client):
    names = "num_ctx num_batch num_gpu main_gpu num_thread use_mmap use_mlock low_vram numa f16_kv"
    options = dict.fromkeys([*names.split(), "vocab_only", "num_keep", "penalize_newline"], True)
    client = make_client(ScriptedBackend(says("x")))
    response = client.post(CHAT, json={**HELLO, "options": options})
    assert set(response.headers["X-Switchyard-Ignored"].split(",")) == set(options)
    response = client.post(CHAT, json={**HELLO, "think": "low"})  # for which it has no switch
    assert response.headers["X-Switchyard-Ignored"] == "think"


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        (CHAT, {"options": {"temperature": 9}}, "options.temperature: "),
        (CHAT, {"options": {"mirostat": 1}}, "options.mirostat: "),
        (CHAT, {"options": {"messages": []}}, "options.messages"),
        (CHAT, {"options": {"num_predict": 0}}, "options.num_predict: "),
        (CHAT, {"options": [1]}, "options: "),
        (CHAT, {"temperature": 1, "options": {"temperature": 0.5}}, "options.temperature and"),
        (CHAT, {"format": "yaml"}, "format: "),
        (CHAT, {"format": {"type": "invalid"}}, "format: "),
        (CHAT, {"think": "much"}, "think: "),
        (CHAT, {"think": True, "enable_thinking": False}, "think and enable_thinking"),
        (CHAT, {"keep_alive": "soon"}, "keep_alive: "),
        (CHAT, {"top_logprobs": 2}, "top_logprobs"),
        (CHAT, {"messages": [{**USER, "images": ["aGk="]}]}, "images"),
        (CHAT, {"messages": [{**USER, "thinking": "x"}]}, "messages.0.thinking"),
        (CHAT, {"messages": [{"role": "x", "content": "y"}]}, "messages.0.role"),
        (CHAT, {"messages": [{"role": "user", "content": "word " * 3000}]}, "context length"),
        (GENERATE, {"images": ["aGk="]}, "images"),
        (GENERATE, {"template": "{{ .Prompt }}"}, "template"),
        (GENERATE, {"raw": True, "system": "x"}, "system: can't be given with raw"),
        (GENERATE, {"raw": True, "context": [5]}, "context: can't be given with raw"),
        (GENERATE, {"raw": True, "suffix": "x"}, "suffix: can't be given with raw"),
        (GENERATE, {"raw": True, "prompt": ""}, "prompt: "),
        (GENERATE, {"suffix": "x"}, "suffix: this model has no fill-in-the-middle"),
        (GENERATE, {"context": [10**6]}, "prompt"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_what_is_wrong_is_named_in_a_text(client, path, body, named):
    least = HELLO if path == CHAT else {"prompt": "x"}
    response = client.post(path, json={**least, **body})
    assert response.status_code == 400, response.text
    assert response.json.keys() == {"error"} and named in response.json["error"]
    assert not client.backend.enqueued


NOT_HERE = ("embed", "embeddings", "push", "create", "copy", "blobs/sha256:1", "pull")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        *(("POST", f"/api/{name}", 501) for name in NOT_HERE),
        ("DELETE", "/api/delete", 501),
        ("POST", "/api/show", 404),
        ("POST", CHAT, 404),
        ("GET", CHAT, 405),
    ],
)
def test_each_error_has_its_status_and_a_text(client, method, path, status):
    response = client.open(path, method=method, json={"model": "other"})
    assert response.status_code == status
    assert isinstance(response.json["error"], str)
    if path in (CHAT, "/api/show", "/api/pull") and method == "POST":
        assert "model 'other' not found" in response.json["error"]


def test_an_error_amid_the_text_is_the_last_line(make_client):
    breaking = fails("Once", error=engine.BatchFailed("no luck"))
    first, last = lines(make_client(ScriptedBackend(breaking)).post(CHAT, json=HELLO))
    assert first["message"]["content"] == "Once"
    assert last.keys() == {"error"} and "no luck" in last["error"]


def test_a_stream_that_waits_shows_it_by_what_each_line_may_begin_with(make_client, gate):
    client = make_client(ScriptedBackend(gate=gate), heartbeat=0.05, queue_timeout=0.5)
    response = client.post(CHAT, json=HELLO)
    assert response.status_code == 200 and response.text.startswith(" ")
    [line] = response.text.splitlines()
    assert "0.5 seconds" in json.loads(line)["error"]
    gate.open()


@pytest.mark.parameter("messages[].tool_name")
@pytest.mark.parameter("messages[].tool_call_id", "messages[].tool_calls[].id", "/api/chat")
@pytest.mark.parameter("messages[].tool_calls[].function.arguments", "/api/chat")
def test_a_call_is_told_whole_and_its_result_finds_it_by_its_name(make_client, with_template):
    told = "<tool_call>{{ tools | length }} {{ messages[1:] | tojson }}"
    backend = ScriptedBackend(says("Well.", CALL[:30], CALL[30:]))
    client = make_client(backend, path=with_template(told))
    whole, parts, last = asked(client, CHAT, {**HELLO, "tools": [WEATHER]})
    [streamed] = [c for part in parts for c in part["message"].get("tool_calls", ())]
    [call] = whole["message"]["tool_calls"]
    assert call["function"] == streamed["function"]
    assert call["function"] == {"index": 0, "name": "get_weather", "arguments": {"city": "Rome"}}
    assert whole["message"]["content"] == "Well." and last["done_reason"] == "stop"
    called = [{"function": {"name": name, "arguments": {"n": 1}}} for name in ("f", "g")]
    history = [
        {"role": "assistant", "content": "", "tool_calls": [*called, {**call, "id": "mine"}]},
        {"role": "tool", "tool_name": "g", "content": "of g"},
        {"role": "tool", "content": "of the first"},
        {"role": "tool", "tool_call_id": "mine", "content": "of mine"},
    ]
    lines(client.post(CHAT, json={"messages": [USER, *history], "tools": [WEATHER]}))
    prompt = client.models.get().tokenizer.decode(backend.enqueued[-1].prompt)
    calls, *results = json.loads(prompt.partition(" ")[2])
    assert [c["id"] for c in calls["tool_calls"]] == ["call_1", "call_2", "mine"]
    assert calls["tool_calls"][0]["function"]["arguments"] == {"n": 1}
    assert [r["tool_call_id"] for r in results] == ["call_2", "call_1", "mine"]


@pytest.mark.parameter("think", "messages[].thinking")
@pytest.mark.parametrize(
    ("think", "switch", "has_thoughts"),
    [(None, "", True), (True, "True", True), ("high", "True high", True), (False, "False", False)],
)
def test_thinking_is_switched_on_and_off(make_client, with_template, think, switch, has_thoughts):
    template = (
        "{{ messages[-2].reasoning_content }} {{ enable_thinking }} {{ reasoning_effort }}<think>"
    )
    backend = ScriptedBackend(says("Hm", ".</think>", "Yes."))
    client = make_client(backend, path=with_template(template))
    history = [{"role": "assistant", "content": "x", "thinking": "once"}, USER]
    body = {"messages": history, "think": think, "model": "scripted"}
    whole, parts, _ = asked(client, CHAT, body)
    thoughts = "".join(part["message"].get("thinking", "") for part in parts)
    assert whole["message"]["content"] == "Yes."
    assert whole["message"].get("thinking", "") == thoughts == "Hm." * has_thoughts
    prompt = client.models.get().tokenizer.decode(backend.enqueued[0].prompt)
    assert prompt.startswith(f"once {switch}".strip())


def test_open_webuis_effort_among_the_options_is_how_to_think(make_client, with_template):
    client = make_client(ScriptedBackend(says("x")), path=with_template("{{ reasoning_effort }}"))
    for more, status in (({}, 200), ({"think": "low"}, 200), ({"think": "high"}, 400)):
        body = {**HELLO, **more, "options": {"reasoning_effort": "low"}, "stream": False}
        response = client.post(CHAT, json=body)
        assert response.status_code == status, (more, response.text)
    decode = client.models.get().tokenizer.decode
    assert [decode(job.prompt) for job in client.backend.enqueued] == ["low"] * 2
    for name, value in (("reasoning_effort", "x"), ("logit_bias", "x"), ("logit_bias", "7:nan")):
        refused = client.post(CHAT, json={**HELLO, "options": {name: value}})
        assert refused.json["error"].startswith(f"options.{name}")


@pytest.mark.parameter("format", "/api/chat")
def test_the_form_of_the_answer(client):
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    for form in ("json", schema, ""):
        lines(client.post(CHAT, json={**HELLO, "format": form}))
    json_object, by_schema, none = (job.constraint for job in client.backend.enqueued)
    assert json_object and by_schema and json_object != by_schema and none is None


@pytest.mark.parameter("raw")
@pytest.mark.parameter("system", "context", "/api/generate")
def test_a_prompt_is_a_message_unless_it_is_raw(make_client):
    client = make_client(ScriptedBackend(says("Yes.")))
    body = {"prompt": "Hello", "system": "Be brief."}
    *_, last = lines(client.post(GENERATE, json=body))
    assert prompt_of(client) == "system\nBe brief.\nuser\nHello\nassistant\n"
    tokenizer, [first] = client.models.get().tokenizer, client.backend.enqueued
    end = tokenizer.token_id("<|im_end|>")
    assert last["context"] == [*first.prompt, 0, end]
    more = {"prompt": "And?", "context": last["context"], "stream": False}
    client.post(GENERATE, json=more)
    then = client.backend.enqueued[-1].prompt
    assert list(then[: len(last["context"])]) == last["context"]
    bos = tokenizer.token_id(client.models.get().model_dir.special_token("bos_token"))
    assert then.count(bos) == 1
    assert tokenizer.decode(then[len(last["context"]) :]) == "user\nAnd?\nassistant\n"
    raw = client.post(GENERATE, json={"prompt": "Hello", "raw": True, "stream": False})
    assert tokenizer.decode(client.backend.enqueued[-1].prompt) == "Hello"
    assert raw.json["response"] == "Yes." and "context" not in raw.json


@pytest.mark.parameter("suffix", "/api/generate")
def test_a_gap_is_filled(make_client, with_tokens):
    backend = ScriptedBackend(says("x"), info=ModelInfo(2048, 5000, 256, 64, "scripted"))
    gap = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]
    client = make_client(backend, path=with_tokens(gap))
    lines(client.post(GENERATE, json={"prompt": "a = ", "suffix": "\n"}))
    tokenizer = client.models.get().tokenizer
    assert {tokenizer.token_id(name) for name in gap} <= set(backend.enqueued[0].prompt)
    shown = client.post("/api/show", json={"model": "scripted"}).json
    assert "insert" in shown["capabilities"]


def test_the_assistants_last_message_is_continued(make_client):
    client = make_client(ScriptedBackend(says("x")))
    lines(client.post(CHAT, json={"messages": [USER, {"role": "assistant", "content": "It"}]}))
    assert prompt_of(client).endswith("assistant\nIt")


def test_logprobs_come_with_their_texts(make_client):
    def script(job):
        yield Started(job.identifier)
        yield Chunk(job.identifier, "x", (88,), (engine.TokenLogprob(88, -0.5, ((89, -1.0),)),))
        yield from list(says()(job))[1:]

    body = {**HELLO, "logprobs": True, "top_logprobs": 1}
    whole, parts, last = asked(make_client(ScriptedBackend(script)), CHAT, body)
    told = [one for part in (*parts, last) for one in part.get("logprobs", ())]
    assert told == whole["logprobs"]
    [one] = told
    assert one["logprob"] == -0.5 and bytes(one["bytes"]).decode() == one["token"]
    assert [other["logprob"] for other in one["top_logprobs"]] == [-1]
