"""`switchyard models`: what it asks of a server, and what it says of the answers."""

import io
import json
import sys

import pytest

from switchyard.cli import main
from tests.cli.conftest import Command

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


@pytest.fixture
def server(answering):
    return answering(body=b"{}")


@pytest.fixture
def models(switchyard, server):
    return Command("models", "--url", server.url)


def events(*bodies):
    return b"".join(b"data: " + json.dumps(body).encode() + b"\n\n" for body in bodies)


def test_models_are_listed_and_then_directories_that_are_none_of_them(models, server):
    server.bodies["GET", "/v1/models"] = json.dumps({"data": ROWS}).encode()
    server.bodies["GET", "/v1/model/list"] = json.dumps({"data": CARDS}).encode()
    assert models("list").output.splitlines() == [
        "a: loaded, also chat, gpt",
        "b: loading 45%",
        "c: loaded, only by an operator",
        "  no weights",
        "other: a directory in models_dir",
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
def test_a_name_reaches_the_server_as_it_is(models, server, arguments, method, path, body):
    server.bodies["POST", path] = events(DONE)
    server.bodies["PUT", path] = json.dumps({"model": "a", "before": None}).encode()
    done = models("--key", "secret", *arguments)
    assert done.exit_code == 0, done.output
    assert server.asked == [(method, path, body)]
    assert server.told("Authorization") == ["Bearer secret"]
    assert arguments[0] != "unload" or "after its last job, if it has any" in done.output
    assert arguments[0] != "alias" or done.output == f"{NAME} now refers to a\n"


def test_settings_are_sent_as_the_file_would_have_them(models, server):
    server.bodies["POST", "/admin/models/a"] = events(DONE)
    settings = ["cache_tokens=4096", 'cache_mode=["Q8"]', "tool_format=hermes", "rope_alpha=2.5"]
    given = [part for setting in settings for part in ("--set", setting)]
    done = models("load", "a", *given, "--model", "dir", "--way", "drain")
    assert done.output.endswith("a was loaded in 1.2 s\n")
    assert [body for _, _, body in server.asked] == [
        {
            **{"cache_tokens": 4096, "cache_mode": ["Q8"], "tool_format": "hermes"},
            **{"rope_alpha": 2.5, "model": "dir", "way": "drain"},
        }
    ]
    assert server.told("Authorization") == [None]


def test_a_load_that_fails_behind_its_begin_ends_with_status_1(models, server):
    error = {"error": {"message": "no room"}}
    server.bodies["POST", "/admin/models/a"] = events({"progress": 0.5}, error)
    assert "no room" in models.told(1, "load", "a")


class Terminal(io.TextIOWrapper):
    def isatty(self):
        return True


@pytest.mark.parametrize(("kind", "is_shown"), [(Terminal, True), (io.TextIOWrapper, False)])
def test_a_load_shows_its_progress_on_a_terminal_alone(server, monkeypatch, kind, is_shown):
    server.bodies["POST", "/admin/models/a"] = events({"progress": None}, {"progress": 0.42}, DONE)
    shown = kind(io.BytesIO(), write_through=True)
    monkeypatch.setattr(sys, "stderr", shown)
    main(["models", "--url", server.url, "load", "a"], standalone_mode=False)
    assert (b"loading, 42%" in shown.buffer.getvalue()) is is_shown
