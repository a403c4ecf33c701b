"""The page at `/`: its files, their headers, and the stream that it reads."""

import gzip
import json
import re
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from gunicorn.config import Config
from gunicorn.http.wsgi import Response

from switchyard.app.config import read_settings
from switchyard.app.exceptions import ClientGone
from switchyard.app.http.threads import Threads
from switchyard.app.request.sampling import Sampled
from switchyard.app.ui import viewers
from switchyard.app.ui.viewers import Board, View, Viewers, Viewing, Watched
from tests.app.conftest import listed
from tests.conftest import ROOT
from tests.scripted import ScriptedBackend, ticking

BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
UI = ROOT / "app" / "ui"
FILES = sorted(f"/ui/{file.name}" for file in UI.iterdir() if file.suffix in (".js", ".css"))


def read(client, **more):
    """The one frame that there is, where the server detaches no connections."""
    response = client.get("/ui/status", **more)
    assert response.mimetype == "text/event-stream"
    assert response.headers["Cache-Control"] == "no-store"
    assert response.headers["X-Accel-Buffering"] == "no"  # nginx would gather frames
    retry, told, *rest = response.text.split("\n")
    assert (retry, rest) == ("retry: 1000", ["", ""])
    return json.loads(told.removeprefix("data: "))


def test_a_browser_gets_the_page_and_a_program_what_it_got_before(client):
    page = client.get("/", headers=BROWSER)
    assert page.mimetype == "text/html" and b"<title>Switchyard</title>" in page.data
    for headers in ({}, {"Accept": "*/*"}, {"Accept": "text/plain"}):
        answer = client.get("/", headers=headers)  # as Ollama's clients know it
        assert answer.mimetype == "text/plain" and "Ollama is running" in answer.text
        assert answer.headers["Vary"] == page.headers["Vary"] == "Accept"
    answer = client.get("/", headers={"Accept": "application/json"})
    assert (answer.json["name"], answer.headers["Vary"]) == ("switchyard", "Accept")


def test_the_page_has_all_its_files_beside_it_and_nothing_else(client):
    page = client.get("/", headers=BROWSER).text
    addresses = re.findall(r'(?:src|href)="([^"#]+)"', page)
    assert {f"/{address}" for address in addresses if address != "data:,"} == set(FILES)
    for path in FILES:
        assert client.get(path).status_code == 200
    assert client.get("/ui/index.html").status_code == client.get("/ui/x.js").status_code == 404
    assert not re.search(r"<script>|<style|\son\w+=|\sstyle=", page)


def test_scripts_and_styles_are_small_and_write_no_html():
    texts = {path: (ROOT / "app" / path[1:]).read_text() for path in FILES}
    assert sum(len(gzip.compress(text.encode())) for text in texts.values()) < 90_000
    assert max(text.count("\n") for text in texts.values()) < 300
    banned = r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\("
    for path, text in texts.items():
        assert not re.search(banned, text), path
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)\w", text), path


def test_the_page_has_a_field_for_each_sampler():
    groups = (UI / "samplers.js").read_text().partition("GROUPS = {")[2].partition("};")[0]
    offered = set(re.findall(r"\w+", groups))
    assert set(Sampled.model_fields) <= offered


@pytest.mark.parametrize("path", ["/", "/ui/main.js", "/ui/style.css"])
def test_each_file_is_asked_for_again_by_its_etag_and_allows_nothing_from_elsewhere(client, path):
    found = client.get(path, headers=BROWSER)
    policy = dict(one.split(" ", 1) for one in found.headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == "'self'"
    assert not any("unsafe" in value for value in policy.values())
    assert found.headers["X-Content-Type-Options"] == "nosniff"
    assert found.headers["Cache-Control"] == "no-cache"
    again = client.get(path, headers={**BROWSER, "If-None-Match": found.headers["ETag"]})
    assert (again.status_code, again.data) == (304, b"")


def test_without_the_setting_there_is_none(make_client):
    client = make_client(ui=False)
    assert client.get("/", headers=BROWSER).json["name"] == "switchyard"
    for path in (*FILES, "/ui/status"):
        assert client.get(path).status_code == 404


@pytest.mark.both_ways
def test_the_stream_tells_what_the_status_does(client):
    told, status = read(client), client.get("/v1/status").json
    assert told.pop("queue") == []
    assert told.keys() == status.keys()
    assert told["models"][0].keys() == status["models"][0].keys()
    assert told["models"][0]["state"] == "ready"


def test_all_viewers_of_a_second_get_what_was_made_once(client):
    here = client.application.extensions["switchyard"]
    board = Board()
    first, _ = board.frame(here, "admin", 7)
    assert board.frame(here, "admin", 7)[0] is first
    assert board.frame(here, "user", 7)[0] is not first
    later, _ = board.frame(here, "admin", 8)
    assert later is not first
    assert board.frame(here, "admin", 7)[0] is later  # of a thread that comes late
    fewer = replace(here, models=here.models.only([]))  # of a key that may use no model
    assert b'"models":[]' in board.frame(fewer, "admin", 8)[0]


def test_a_viewer_gets_one_frame_a_second():
    asked = []
    view = View(None, lambda second: asked.append(second) or (b"frame", True), lambda: True)
    assert [view.take(now) for now in (5.1, 5.4, 5.9, 6.0)] == [b"frame", None, None, b"frame"]
    assert asked == [5, 6] and not view.is_finished


def test_a_viewer_whose_key_was_taken_back_sees_no_more():
    allowed = [True, False]
    view = View(None, lambda second: (b"frame", True), lambda: allowed.pop(0))
    assert (view.take(1.0), view.take(2.0)) == (b"frame", None)
    assert view.is_finished


def test_viewers_see_the_end_of_the_server_and_no_more():
    view = View(None, lambda second: (b"draining", False), lambda: True)
    assert view.take(1.0) == b"draining"
    assert view.is_finished and view.take(2.0) is None


def test_what_waits_is_told_by_its_place(make_client, ask, monkeypatch):
    client = make_client(ScriptedBackend(ticking, max_active=1))
    body = {"prompt": [1, 2, 3], "max_tokens": 2000}
    ask(client, body)
    listed(client, 1)
    ask(client, {**body, "n": 2, "priority": -1})
    listed(client, 3)
    board, here = Board(), client.application.extensions["switchyard"]
    told = json.loads(board.frame(here, "admin", 1)[0].removeprefix(b"data: "))
    assert [(one["place"], one["priority"]) for one in told["queue"]] == [(1, -1), (2, -1)]
    assert told["queue"][0]["model"] == told["models"][0]["id"]
    assert told["queue"][0]["prompt_tokens"] == 3
    monkeypatch.setattr(viewers, "MAX_QUEUE", 1)
    assert board.frame(here, "admin", 2)[0].count(b'"place"') == 1
    client.models.close()


def test_the_queue_is_that_of_all_models_by_its_places():
    def model(name, *places):
        jobs = [SimpleNamespace(place=p, priority=0, age=1.26, prompt_tokens=3) for p in places]
        return SimpleNamespace(config=SimpleNamespace(name=name), jobs=lambda ask: jobs)

    models = SimpleNamespace(engines=[model("a", None, 2), model("b", 3, 1)])
    told = viewers._queue(SimpleNamespace(models=models))
    assert [(one["model"], one["place"]) for one in told] == [("b", 1), ("a", 2), ("b", 3)]
    assert told[0]["age"] == 1.3


def test_what_caches_must_tell_apart_is_told_beside_what_they_do_already(make_client):
    client = make_client(cors_origins=["https://chat.example"])
    assert set(client.get("/").headers.getlist("Vary")) == {"Accept", "Origin"}


def test_places_are_as_many_as_the_setting_and_the_server_say():
    places = Viewers(read_settings(max_viewers=2))
    assert [places.enter(9) for _ in range(3)] == [True, True, False]
    places.leave()
    assert not places.enter(1) and places.enter(2)


@pytest.mark.parametrize(("error", "last"), [(None, b"0\r\n\r\n"), (ClientGone(), b"")])
def test_a_stream_that_fails_has_no_last_chunk(ends, error, last):
    ours, theirs = ends
    view = View(None, lambda second: (b"frame", True), lambda: True)
    outlet = Viewing(view, 30.0, ours, ours.close, lambda: None)
    outlet.error = error
    outlet.end()
    assert theirs.recv(100) == last


def test_without_room_for_a_thread_that_writes_it_a_stream_ends_behind_a_frame(ends, monkeypatch):
    ours, theirs = ends
    monkeypatch.setattr(threading.Thread, "start", no_room)
    viewers, threads = Viewers(read_settings(max_viewers=1)), Threads()
    threads.detach, threads.max_detached = lambda: ours.close, 9
    view = View(None, lambda second: (b"frame", True), lambda: True)
    response = Watched(view, viewers, SimpleNamespace(threads=threads))
    request = SimpleNamespace(version=(1, 1), method="GET", should_close=lambda: False)
    response._server = Response(request, ours, Config())
    assert list(response.response) == [b"frame"]
    assert theirs.recv(100) == b"0\r\n\r\n" and theirs.recv(100) == b""
    assert viewers.enter(1) and not viewers.enter(1)


def no_room(thread):
    raise RuntimeError("can't start new thread")
