"""Open WebUI, by an OpenAI and an Ollama connection, over the demo model's prompts and a script."""

import json
import os
import signal
import subprocess
import time

import pytest
import requests

from tests.app.test_field_lists import OPEN_WEBUI
from tests.conftest import DEMO, ROOT
from tests.live.conftest import GUNICORN, Server, free_port

pytestmark = pytest.mark.open_webui

BIN = ROOT / ".venv" / "open-webui" / "bin"
SCRIPTED = [*GUNICORN[:-1], str(ROOT / "tests" / "agents" / "scripted_conf.py")]
ROUTES = {"demo": "/v1/chat/completions", "ollama.demo": "/api/chat"}  # by Open WebUI's model
SAY = [{"role": "user", "content": "The secret word is heliotrope. Say it."}]
HELLO = [{"role": "user", "content": "Hello!"}]
SAYS = "It says heliotrope."
TOOL = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Reads a file.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    },
}
# As users write it.
PANEL = {**OPEN_WEBUI, "logit_bias": "7:1, 8:-100"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    directory = tmp_path_factory.mktemp("server")
    log = {"access_log": directory / "access.log", "log_format": "json"}
    server = Server(SCRIPTED, directory, model=DEMO, **log)
    yield server.wait_until_ready()
    assert server.stop() == 0, server.output
    lines = list(map(json.loads, (directory / "access.log").read_text().splitlines()))
    for route in ROUTES.values():
        asked = [line["status"] for line in lines if line["route"] == route]
        assert len(asked) > len(PANEL) and set(asked) == {200}


@pytest.fixture(scope="module")
def webui(server, tmp_path_factory):
    """A session of Open WebUI's only user, with the server as both connections."""
    home, port = tmp_path_factory.mktemp("webui"), free_port()
    (home / "data").mkdir()
    own = {
        **{"HOME": home, "DATA_DIR": home / "data", "WEBUI_AUTH": "False", "WEBUI_SECRET_KEY": "x"},
        **{"OPENAI_API_BASE_URLS": f"{server.url}/v1", "OPENAI_API_KEYS": "none"},
        **{"OLLAMA_BASE_URLS": server.url, "OFFLINE_MODE": "True", "HF_HUB_OFFLINE": "1"},
        **{"RAG_EMBEDDING_ENGINE": "openai", "SCARF_NO_ANALYTICS": "true", "DO_NOT_TRACK": "true"},
    }
    command = [BIN / "open-webui", "serve", "--host", "127.0.0.1", "--port", str(port)]
    with open(home / "log", "w") as log:
        process = subprocess.Popen(
            command,
            cwd=home,
            env={**os.environ, **{name: str(value) for name, value in own.items()}},
            stdout=log,
            stderr=log,
        )
    try:
        yield Session(f"http://127.0.0.1:{port}", lambda: (home / "log").read_text())
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


class Session(requests.Session):
    def __init__(self, url, log):
        super().__init__()
        self._url = url
        deadline = time.monotonic() + 300  # at first nothing is compiled
        while not self._is_up():
            assert time.monotonic() < deadline, log()
            time.sleep(0.2)
        signed = self.ask("/api/v1/auths/signin", email="", password="").json()
        self.headers["Authorization"] = f"Bearer {signed['token']}"
        config = self.get(f"{url}/ollama/config").json()
        names = {"0": {"enable": True, "prefix_id": "ollama"}}
        self.ask("/ollama/config/update", **{**config, "OLLAMA_API_CONFIGS": names})
        listed = self.get(f"{url}/api/models").json()["data"]
        assert {one["id"] for one in listed} >= ROUTES.keys()

    def _is_up(self):
        try:
            return self.get(f"{self._url}/health", timeout=5).ok
        except requests.ConnectionError:
            return False

    def ask(self, path, **body):
        response = self.post(f"{self._url}{path}", json=body, timeout=60)
        assert response.status_code == 200, (body, response.text)
        return response

    def chat(self, model, messages, **more):
        return self.ask("/api/chat/completions", model=model, messages=messages, **more)


@pytest.mark.parametrize("model", ROUTES)
def test_a_chat_is_answered_whole_and_streamed(webui, model):
    [choice] = webui.chat(model, SAY, stream=False).json()["choices"]
    assert choice["message"]["content"].startswith(SAYS) and choice["finish_reason"] == "stop"
    lines = webui.chat(model, SAY, stream=True).text.split("\n\n")
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert data.pop() == "[DONE]"
    choices = [choice for one in data for choice in json.loads(one)["choices"]]
    told = "".join(one["delta"].get("content") or "" for one in choices)
    assert told == choice["message"]["content"] and choices[-1]["finish_reason"] == "stop"


@pytest.mark.parametrize("model", ROUTES)
@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_is_called_and_its_result_is_read(webui, model, stream):
    ask = [{"role": "user", "content": "What is the secret word in notes.txt?"}]
    response = webui.chat(model, ask, tools=[TOOL], stream=stream)
    bodies = [json.loads(response.text)] if not stream else events(response)
    parts = [c.get("message") or c["delta"] for body in bodies for c in body["choices"]]
    calls = [call for part in parts for call in part.get("tool_calls") or ()]
    arguments = "".join(call["function"]["arguments"] for call in calls)
    assert calls[0]["function"]["name"] == "read_file"
    assert json.loads(arguments) == {"path": "notes.txt"}
    call = {**calls[0], "function": {"name": "read_file", "arguments": arguments}}
    ask += [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "The secret word is heliotrope."},
    ]
    [choice] = webui.chat(model, ask, tools=[TOOL], stream=False).json()["choices"]
    assert choice["message"]["content"].startswith(SAYS)


def events(response):
    lines = [line[6:] for line in response.text.split("\n\n") if line.startswith("data: {")]
    return list(map(json.loads, lines))


@pytest.mark.parametrize("model", ROUTES)
def test_a_conversation_gets_a_title(webui, model):
    messages = [*HELLO, {"role": "assistant", "content": "Hello! How are you?"}]
    told = webui.ask("/api/v1/tasks/title/completions", model=model, messages=messages)
    assert told.json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize("model", ROUTES)
@pytest.mark.parametrize("name", PANEL)
def test_each_advanced_parameter_is_taken(webui, model, name):
    if (model, name) == ("ollama.demo", "response_format"):
        pytest.skip("its panel has `format`, and no such field")
    for stream in (False, True):
        response = webui.chat(model, SAY, params={name: PANEL[name]}, stream=stream)
        assert '"error"' not in response.text
