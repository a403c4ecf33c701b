"""Clients of Ollama's API, each at its defaults, over the demo model's prompts and a script."""

import json

import pytest

from tests.conftest import DEMO, ROOT, run_node
from tests.live.conftest import GUNICORN, shared_server

pytestmark = pytest.mark.clients

SCRIPTED = [*GUNICORN[:-1], str(ROOT / "tests" / "agents" / "scripted_conf.py")]
ANSWER = "A look at a file"
SAYS = "It says heliotrope."

scripted = shared_server(SCRIPTED, model=DEMO)


def calls(run, server, name):
    _, output = run(ROOT / "tests" / "clients" / "ollama_calls.py", name, server.url)
    return json.loads(output.splitlines()[-1])


def test_ollamas_own_client_for_python(run, scripted):
    found = calls(run, scripted, "ollama")
    errors = found.pop("errors")
    assert found == {
        "models": ["demo", "demo", "llama", ["completion", "tools"]],
        "expires": 2200,
        "pulled": "success",
        "chat": ANSWER,
        "streamed": ANSWER,
        "end": ["stop", found["end"][1], "Z"],
        "generated": ANSWER,
        "pieces": ANSWER,
        "grown": True,
        "arguments": {"path": "notes.txt"},
        "answered": SAYS,
        "called": ["read_file"],
        "form": "heliotrope",
        "thought": ["Hm.", "Yes."],
        "cut": 2,
        "loaded": "load",
        "cancelled": [1, True],
    }
    assert [errors[name][0] for name in ("model", "stream", "option", "embed")] == [
        *(404, 404, 400, 501)
    ]
    assert "model 'other' not found" in errors["model"][1]
    assert errors["option"][1].startswith("options.top_p: ")


def test_ollamas_own_client_for_node(scripted):
    found = run_node("tests/node/ollama.mjs", scripted.url)
    status, message = found.pop("missing")
    assert status == 404 and "model 'other' not found" in message
    assert found == {
        "models": ["demo", "demo"],
        "family": "llama",
        "chat": ANSWER,
        "streamed": [ANSWER, "stop"],
        "generated": ANSWER,
        "pieces": [ANSWER, "stop"],
        "arguments": {"path": "notes.txt"},
        "answered": SAYS,
        "form": {"word": "heliotrope"},
        "thought": ["Hm.", "Yes."],
        "cut": 2,
        "cancelled": [True, 0],
    }


@pytest.mark.parametrize("name", ["langchain", "llama_index"])
def test_a_framework_over_ollamas_client_chats_and_calls(run, scripted, name):
    assert calls(run, scripted, name) == {
        "chat": ANSWER,
        "streamed": ANSWER,
        "arguments": {"path": "notes.txt"},
        "answered": SAYS,
    }
