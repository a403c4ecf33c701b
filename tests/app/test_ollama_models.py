"""What Ollama's clients ask of models, and in which order, over a scripted backend."""

import pytest

from switchyard.app.formats.ollama.keep import seconds
from tests.app.test_ollama import CHAT, GENERATE, WEATHER, lines
from tests.scripted import ScriptedBackend, says

pytestmark = pytest.mark.both_ways


@pytest.mark.parameter("keep_alive")
@pytest.mark.parametrize("path", [CHAT, GENERATE])
def test_without_a_prompt_the_model_is_loaded_or_unloaded(make_client, path):
    backend = ScriptedBackend()
    client = make_client(backend)
    [loaded] = lines(client.post(path, json={"model": "scripted:latest"}))
    assert (loaded["done"], loaded["done_reason"]) == (True, "load")
    foreign = {"Origin": "http://localhost", "X-Forwarded-For": "10.0.0.1"}
    body = {"model": "scripted", "keep_alive": "0s", "stream": False}
    refused = client.post(path, json=body, headers=foreign)
    assert refused.status_code == 403 and "unload" in refused.json["error"]
    told = client.post(path, json={**body, "keep_alive": "5m"})
    assert told.headers["X-Switchyard-Ignored"] == "keep_alive"  # no key speaks for an operator
    assert client.models.served().idle_timeout == 0
    assert client.post(path, json=body).json["done_reason"] == "unload"
    assert not backend.enqueued


@pytest.mark.one_way
@pytest.mark.parametrize(
    ("value", "expected"),
    [("5m", 300), ("1h30m", 5400), ("-1", -1), ("0", 0), ("1.5s", 1.5), ("-1m", -60), (7, 7)],
)
def test_durations_are_as_go_writes_them(value, expected):
    assert seconds(value) == pytest.approx(expected)


@pytest.mark.parameter("stream", "/api/pull")
def test_what_is_there_needs_no_download(make_client):
    client = make_client(ScriptedBackend())
    assert lines(client.post("/api/pull", json={"name": "scripted:latest"})) == [
        {"status": "success"}
    ]
    body = {"model": "scripted", "stream": False, "insecure": True}
    assert client.post("/api/pull", json=body).json == {"status": "success"}


def test_models_are_listed_and_shown(make_client):
    client = make_client(ScriptedBackend())
    [listed] = client.get("/api/tags").json["models"]
    [running] = client.get("/api/ps").json["models"]
    shown = client.post("/api/show", json={"name": "scripted"}).json
    assert listed["name"] == listed["model"] == running["name"] == "scripted"
    assert listed["details"] == running["details"] == shown["details"]
    assert listed["size"] > 10**6 and len(listed["digest"]) == 12
    assert running["context_length"] == 2048 and running["expires_at"] > "2100"
    assert shown["details"]["family"] == "llama" and "completion" in shown["capabilities"]
    assert shown["model_info"]["llama.block_count"] == 2
    assert shown["parameters"].splitlines()[0].split() == ["temperature", "0.8"]
    assert "<|im_start|>" in shown["template"]
    client.models.keep("scripted", 60.0)
    [running] = client.get("/api/ps").json["models"]
    assert running["expires_at"] < "2100"


# Bodies written from public documentation: what each program sends at its defaults.
OPEN_WEBUI = [
    ("GET", "/api/version", None),
    ("GET", "/api/tags", None),
    ("GET", "/api/ps", None),
    (
        "POST",
        CHAT,
        {
            "model": "scripted:latest",
            "messages": [{"role": "user", "content": "Hi", "images": []}],
            "options": {"num_ctx": 4096, "temperature": 0.7, "repeat_last_n": 64},
            "stream": True,
        },
    ),
]
HOME_ASSISTANT = [
    ("GET", "/api/tags", None),
    ("POST", "/api/show", {"model": "scripted"}),
    (
        "POST",
        CHAT,
        {
            "model": "scripted",
            "messages": [
                {"role": "system", "content": "You are a voice assistant.", "images": None},
                {"role": "user", "content": "Turn on the light", "images": None},
            ],
            "tools": [WEATHER],
            "stream": True,
            "think": False,
            "format": None,
            "options": {"num_ctx": 8192},
            "keep_alive": "-1s",
        },
    ),
]
EDITOR = [
    ("HEAD", "/", None),
    ("POST", "/api/show", {"name": "scripted"}),
    ("POST", GENERATE, {"model": "scripted", "keep_alive": 1800}),
    (
        "POST",
        GENERATE,
        {
            "model": "scripted",
            "prompt": "<fim_prefix>a = <fim_suffix>\n<fim_middle>",
            "raw": True,
            "options": {"temperature": 0.01, "num_predict": 5, "stop": ["\n\n"], "num_ctx": 4096},
            "keep_alive": 1800,
        },
    ),
]


@pytest.mark.parametrize("sequence", [OPEN_WEBUI, HOME_ASSISTANT, EDITOR], ids=lambda s: s[0][1])
def test_recorded_sequences_are_answered(make_client, sequence):
    client = make_client(ScriptedBackend(says("Yes.")))
    for method, path, body in sequence:
        response = client.open(path, method=method, json=body)
        assert response.status_code == 200, (path, response.text)
    *parts, last = lines(response)
    assert last["done_reason"] == "stop" and parts
