"""Frameworks that offer tools and ask for a form of the output in one request: the tool is called,
then the answer has the form.
"""

import json
import subprocess

import pytest

from tests.agents.conftest import PACKAGES, PYTHON, needs
from tests.conftest import ROOT, run_node

pytestmark = pytest.mark.agents

HERE = ROOT / "tests" / "agents"


@needs(PYTHON.parents[1] / ".installed", "pip")
@pytest.mark.parametrize(
    ("name", "num_requests"),
    [
        ("openai-agents", 2),
        ("openai-agents-responses", 2),
        ("pydantic-ai", 2),
        ("langchain", 2),
        ("instructor", 1),
        ("semantic-kernel", 4),
    ],
)
def test_a_framework_gets_a_call_and_then_the_form(server, requests_of, name, num_requests):
    command = [PYTHON, HERE / "frameworks.py", name, f"{server.url}/v1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"word": "heliotrope"}
    is_responses = name.endswith("responses") or name == "semantic-kernel"
    route = "/v1/responses" if is_responses else "/v1/chat/completions"
    assert [line["status"] for line in requests_of(route)] == [200] * num_requests


@needs(PACKAGES / "ai")
def test_the_ai_sdk_gets_a_call_and_then_the_form(server):
    got = run_node(HERE / "sdk.mjs", f"{server.url}/v1")
    assert got["outputs"] == [{"word": "heliotrope"}] * 2
    assert got["kinds"] == [["tool-calls", "stop"]] * 2
