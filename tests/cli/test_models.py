"""`switchyard models`, of a server whose answers a test writes."""

import http.server
import io
import json
import sys
import threading

import pytest

from switchyard.cli import main

STATUS = {"value": "loaded", "progress": None, "load": "start", "reason": None}
ROW = {"id": "a", "aliases": [], "status": STATUS}
LOADING = {"model": "a", "status": "loading"}
LOADED = {"model": "a", "status": "loaded", "way": "beside", "seconds": 1.25}


class Terminal(io.TextIOWrapper):
    def isatty(self):
        return True


@pytest.fixture
def models(capsys):
    """The command's output; its server has `answers` by method and path, lists what is `asked`."""

    def ask(answers, *arguments):
        ask.asked = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self):
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                ask.asked.append(f"{self.command} {self.path}")
                self.send_response(200)
                self.end_headers()
                self.wfile.write(answers.get(ask.asked[-1], b"{}"))

            do_GET = do_POST = do_DELETE = do_PUT = answer

            def log_message(self, *args):
                pass

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            url = f"http://127.0.0.1:{server.server_port}"
            try:
                main(["models", "--url", url, *arguments], standalone_mode=False)
            finally:
                server.shutdown()
                thread.join()
        return capsys.readouterr()

    return ask


def streamed(*events):
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)


def test_directories_that_are_models_already_are_listed_once(models):
    cards = [{"id": name} for name in ("a", "b", "c")]
    answers = {
        "GET /v1/models": json.dumps({"data": [ROW]}).encode(),
        "GET /v1/model/list": json.dumps({"data": cards}).encode(),
    }
    assert models(answers, "list").out.splitlines() == [
        "a: loaded",
        "b: a directory of models_dir",
        "c: a directory of models_dir",
    ]


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (["load", "org/a b"], "POST /admin/models/org%2Fa%20b"),
        (["unload", "org/a", "--drain", "2"], "DELETE /admin/models/org%2Fa?drain=2"),
        (["alias", "org/x", "a"], "PUT /admin/aliases/org%2Fx"),
    ],
)
def test_a_slash_in_a_name_stays_in_it(models, arguments, asked):
    answers = {
        "POST /admin/models/org%2Fa%20b": streamed(LOADED),
        "PUT /admin/aliases/org%2Fx": json.dumps({"model": "a", "before": None}).encode(),
    }
    models(answers, *arguments)
    assert models.asked == [asked]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_load_shows_its_progress_on_a_terminal_alone(models, monkeypatch, is_terminal):
    shown = (Terminal if is_terminal else io.TextIOWrapper)(io.BytesIO(), write_through=True)
    monkeypatch.setattr(sys, "stderr", shown)
    events = [LOADING | {"progress": None}, LOADING | {"progress": 0.42}, LOADED]
    done = models({"POST /admin/models/a": streamed(*events)}, "load", "a")
    assert "a is loaded, in 1.2 s, beside the old one" in done.out
    assert (b"loading, 42%" in shown.buffer.getvalue()) is is_terminal
