"""Switchyard as an extension of another Flask application, over a real model."""

import os
import time

import flask
import pytest

from switchyard import engine
from switchyard.app import BadRequest, ClientGone, SettingsError, Switchyard
from switchyard.app.host.asked import MEANINGLESS

PROMPT = "def main():"
GREEDY = {"temperature": 0, "max_tokens": 20, "ignore_eos": True}


@pytest.fixture(scope="module")
def host(model_path):
    """A Flask application with the extension, started."""
    app = flask.Flask("host")
    app.config["SWITCHYARD_MODEL"] = model_path
    app.switchyard = Switchyard(app, url_prefix="/llm", max_batch_size=4)
    app.switchyard.start()
    assert app.switchyard.models.wait_until_loaded(60)
    yield app
    app.switchyard.models.close(timeout=20)


def test_a_setting_of_the_arguments_counts_before_one_of_the_application(model_path):
    app = flask.Flask("host")
    app.config.update(SWITCHYARD_MODEL=model_path, SWITCHYARD_NAME="a", SWITCHYARD_MAX_PENDING=3)
    config = Switchyard(app, name="b").models.get().config
    assert (config.name, config.max_pending) == ("b", 3)


def test_an_unknown_setting_of_the_application_is_refused(model_path):
    app = flask.Flask("host")
    app.config.update(SWITCHYARD_MODEL=model_path, SWITCHYARD_SPEED="high")
    with pytest.raises(SettingsError, match="SWITCHYARD_SPEED"):
        Switchyard(app)


def test_a_prefix_begins_with_a_slash():
    with pytest.raises(SettingsError, match="url_prefix: 'llm' must begin with a slash"):
        Switchyard(url_prefix="llm")


def test_an_extension_without_an_application_says_so():
    with pytest.raises(RuntimeError, match="init_app"):
        Switchyard().generate("x")


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("completions", {"prompt": PROMPT}),
        ("chat/completions", {"messages": [{"role": "user", "content": "hello"}]}),
    ],
)
def test_a_thread_without_a_request_generates(host, url, asked):
    body = {**asked, **GREEDY}
    result = host.switchyard.generate(**body)
    assert (result.finish_reason, result.completion_tokens) == ("length", 20)
    over_http = host.test_client().post(f"/llm/v1/{url}", json=body).json
    [choice] = over_http["choices"]
    assert result.text == (choice["message"]["content"] if "chat" in url else choice["text"])
    assert result.prompt_tokens == over_http["usage"]["prompt_tokens"]


def test_a_stream_yields_the_pieces_of_the_same_text(host):
    stream = host.switchyard.stream(PROMPT, **GREEDY)
    pieces = list(stream)
    assert stream.result == host.switchyard.generate(PROMPT, **GREEDY)
    assert "".join(pieces) == stream.result.text
    assert len(pieces) > 1


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "x", "messages": []}, "prompt"),
        ({"prompt": ["x"]}, "prompt"),
        ({"prompt": "x", "temperature": "warm"}, "temperature"),
        ({"prompt": "x", "no_such": 1}, "no_such"),
        *(({"prompt": "x", name: True}, name) for name in MEANINGLESS),
        ({"messages": []}, "messages"),
    ],
)
def test_bad_parameters_are_named(host, arguments, param):
    with pytest.raises(BadRequest) as caught:
        host.switchyard.generate(**arguments)
    assert caught.value.param == param


def test_a_limit_of_no_tokens_is_not_told_of_echo_which_has_no_meaning_here(host):
    with pytest.raises(BadRequest, match=r"^max_tokens: must be at least 1$") as caught:
        host.switchyard.generate("x", max_tokens=0)
    assert caught.value.param == "max_tokens"


def test_too_many_tokens_are_the_engine_s_own_error(host):
    with pytest.raises(engine.PromptTooLong) as caught:
        host.switchyard.generate(PROMPT, max_tokens=100_000)
    assert caught.value.param == "max_tokens"


def test_a_view_whose_client_leaves_ends_with_an_exception(host, connection):
    connection.client.close()
    visit = host.test_request_context("/", environ_overrides=connection.environ)
    with visit, pytest.raises(ClientGone):
        host.switchyard.generate(PROMPT, max_tokens=1500, ignore_eos=True)


def test_hooks_see_the_requests_to_the_api_alone(model_path):
    app = flask.Flask("host")
    app.add_url_rule("/page", view_func=lambda: "page")
    switchyard = Switchyard(url_prefix="/llm", before_request=lambda: ("no entry", 403))
    app.config["SWITCHYARD_MODEL"] = model_path
    switchyard.init_app(app)
    client = app.test_client()
    assert client.get("/page").text == "page"
    assert client.post("/llm/v1/completions", json={"prompt": "x"}).text == "no entry"
    assert switchyard.models.get().state == "loading"  # nobody has been let in


def test_a_fork_after_the_start_is_refused(host):
    host.switchyard.start()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            host.switchyard.start()
        except RuntimeError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with os.fdopen(read) as file:
        assert "forked" in file.read()


def test_a_fork_ends_at_once_while_its_parent_has_jobs(host):
    """As its own atexit does: it has a copy of the jobs, and no thread that would end them."""
    stream = host.switchyard.stream(PROMPT, **{**GREEDY, "max_tokens": 1900})
    next(iter(stream))
    pid = os.fork()
    if pid == 0:
        begin = time.monotonic()
        host.switchyard.models.close(drain=20)
        os._exit(int(time.monotonic() - begin > 10))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    stream.close()
