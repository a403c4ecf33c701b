"""examples/helpdesk, as its README says to run it."""

import re
import sys

import pytest
import requests

from tests.live.conftest import ROOT, Server, free_port
from tests.live.helpdesk import User


@pytest.fixture(scope="module")
def helpdesk(tmp_path_factory):
    port = free_port()
    command = [sys.executable, "-m", "gunicorn", "--pythonpath", "../..", "--threads", "32"]
    command += ["--keep-alive", "0", "--bind", f"127.0.0.1:{port}", "helpdesk:app"]
    log = tmp_path_factory.mktemp("helpdesk")
    server = Server(command, log, port, cwd=ROOT / "examples" / "helpdesk")
    server.wait_until_answers("/login")
    yield server
    assert server.stop() == 0, server.output
    assert "Switchyard serves" not in server.output  # which its own server would say


@pytest.fixture
def visitor():
    with requests.Session() as session:
        yield session


@pytest.fixture
def user(helpdesk):
    with User(helpdesk.url) as user:
        yield user


def test_pages_and_the_api_ask_for_the_login_which_leads_to_the_page(helpdesk, visitor, user):
    assert "Log in" in visitor.get(helpdesk.url).text
    assert visitor.post(f"{helpdesk.url}/login", data={"password": "wrong"}).status_code == 403
    assert "Log in" in visitor.get(helpdesk.url).text
    response = visitor.get(f"{helpdesk.url}/llm/v1/models")
    assert (response.status_code, response.json()["error"]["message"]) == (401, "log in first")
    assert "Hello, Ada" in user.get(helpdesk.url).text


def test_a_view_gets_a_whole_answer(helpdesk, user):
    response = user.post(f"{helpdesk.url}/title", data={"question": "What is 2 + 3?"})
    assert "5" in re.search("<h2>(.*)</h2>", response.text)[1]


def test_a_view_streams_an_answer(helpdesk, user):
    question = {"question": "Count from 1 to 20."}
    with user.post(f"{helpdesk.url}/ask", data=question, stream=True) as response:
        pieces = list(response.iter_content(None, decode_unicode=True))
    assert "18, 19, 20" in "".join(pieces)
    assert len(pieces) > 3


def test_the_api_answers_under_its_prefix(helpdesk, user):
    body = {"messages": [{"role": "user", "content": "What is 2 + 3?"}], "temperature": 0}
    answer = user.post(f"{helpdesk.url}/llm/v1/chat/completions", json=body).json()
    assert "5" in answer["choices"][0]["message"]["content"]


def test_errors_of_the_api_are_json_and_others_are_the_host_s(helpdesk, user):
    bad = user.post(f"{helpdesk.url}/llm/v1/chat/completions", json={"messages": []})
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "messages")
    unknown = user.get(f"{helpdesk.url}/nowhere")
    assert (unknown.status_code, "There is no such page." in unknown.text) == (404, True)
    refused = user.post(f"{helpdesk.url}/title", data={"question": "too long " * 5000})
    assert (refused.status_code, "may be too long" in refused.text) == (400, True)
