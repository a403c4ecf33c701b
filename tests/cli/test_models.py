"""`switchyard models`: what it asks of a server, and what it says of the answers."""

import http.server
import io
import json
import sys
import threading

import pytest
from click.testing import CliRunner

from switchyard.cli import main

LOADED = {"value": "loaded", "progress": None, "load": "start", "reason": None}
ROWS = [
    {"id": "a", "aliases": ["chat", "gpt"], "status": LOADED},
    {"id": "b", "aliases": [], "status": {**LOADED, "value": "loading", "progress": 0.45}},
    {"id": "c", "aliases": [], "status": {**LOADED, "load": "manual", "reason": "no weights"}},
]
CARDS = [{"id": name} for name in ("a", "b", "c", "other")]
DONE = {"model": "a", "status": "loaded", "way": None, "seconds": 1.25}
NAME = "a model/of?mine#1"
QUOTED = "a%20model%2Fof%3Fmine%231"


class Told(http.server.BaseHTTPRequestHandler):
    """Notes what is asked. Answers with the server's `answers`, by method and path."""

    def answer(self):
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        asked = (self.command, self.path, json.loads(body or "null"))
        self.server.asked.append((*asked, self.headers["Authorization"]))
        answer = self.server.answers.get((self.command, self.path.partition("?")[0]), b"{}")
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST = do_PUT = do_DELETE = answer

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SWITCHYARD_KEY", raising=False)
    with http.server.HTTPServer(("127.0.0.1", 0), Told) as server:
        server.asked, server.answers = [], {}
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join(20)


def run(server, *arguments, key=()):
    command = ["models", "--url", f"http://127.0.0.1:{server.server_port}", *key, *arguments]
    return CliRunner().invoke(main, command)


def events(*bodies):
    return b"".join(b"data: " + json.dumps(body).encode() + b"\n\n" for body in bodies)


def test_models_are_listed_and_then_directories_that_are_none_of_them(server):
    server.answers["GET", "/v1/models"] = json.dumps({"data": ROWS}).encode()
    server.answers["GET", "/v1/model/list"] = json.dumps({"data": CARDS}).encode()
    done = run(server, "list")
    assert done.output.splitlines() == [
        "a: loaded, also chat, gpt",
        "b: loading 45%",
        "c: loaded, only by an operator",
        "  no weights",
        "other: a directory of models_dir",
    ]


@pytest.mark.parametrize(
    ("arguments", "method", "path", "body"),
    [
        (["load", NAME], "POST", f"/admin/models/{QUOTED}", {}),
        (["unload", NAME], "DELETE", f"/admin/models/{QUOTED}", None),
        (["unload", "a", "--drain", "0"], "DELETE", "/admin/models/a?drain=0", None),
        (["alias", NAME, "a"], "PUT", f"/admin/aliases/{QUOTED}", {"model": "a"}),
    ],
)
def test_a_name_reaches_the_server_as_it_is(server, arguments, method, path, body):
    server.answers["POST", path] = events(DONE)
    server.answers["PUT", path] = json.dumps({"model": "a", "before": None}).encode()
    done = run(server, *arguments, key=("--key", "secret"))
    assert done.exit_code == 0, done.output
    assert server.asked == [(method, path, body, "Bearer secret")]
    assert arguments[0] != "unload" or "after its last job, if it has any" in done.output
    assert arguments[0] != "alias" or done.output == f"{NAME} is a\n"


def test_settings_are_sent_as_the_file_would_have_them(server):
    server.answers["POST", "/admin/models/a"] = events(DONE)
    settings = ["cache_tokens=4096", 'cache_mode=["Q8"]', "tool_format=hermes", "rope_alpha=2.5"]
    given = [part for setting in settings for part in ("--set", setting)]
    done = run(server, "load", "a", *given, "--model", "dir", "--way", "drain")
    assert done.output.endswith("a is loaded, in 1.2 s\n")
    [(_, _, body, key)] = server.asked
    assert key is None and body == {
        **{"cache_tokens": 4096, "cache_mode": ["Q8"], "tool_format": "hermes"},
        **{"rope_alpha": 2.5, "model": "dir", "way": "drain"},
    }


@pytest.mark.parametrize("setting", ["cache_tokens", "=3", "cache tokens=3"])
def test_what_is_no_setting_is_not_sent(server, setting):
    done = run(server, "load", "a", "--set", setting)
    assert done.exit_code == 2 and "must be NAME=VALUE" in done.output
    assert server.asked == []


def test_a_load_that_fails_behind_its_begin_ends_with_status_1(server):
    error = {"error": {"message": "no room"}}
    server.answers["POST", "/admin/models/a"] = events({"progress": 0.5}, error)
    done = run(server, "load", "a")
    assert done.exit_code == 1 and "no room" in done.output


class Terminal(io.TextIOWrapper):
    def isatty(self):
        return True


@pytest.mark.parametrize(("kind", "is_shown"), [(Terminal, True), (io.TextIOWrapper, False)])
def test_a_load_shows_its_progress_on_a_terminal_alone(server, monkeypatch, kind, is_shown):
    server.answers["POST", "/admin/models/a"] = events({"progress": None}, {"progress": 0.42}, DONE)
    shown = kind(io.BytesIO(), write_through=True)
    monkeypatch.setattr(sys, "stderr", shown)
    url = f"http://127.0.0.1:{server.server_port}"
    main(["models", "--url", url, "load", "a"], standalone_mode=False)
    assert (b"loading, 42%" in shown.buffer.getvalue()) is is_shown


def test_the_key_may_be_in_the_environment(server, monkeypatch):
    monkeypatch.setenv("SWITCHYARD_KEY", "mine")
    server.answers["GET", "/v1/models"] = b'{"data": []}'
    run(server, "list")
    assert server.asked[0][3] == "Bearer mine"
