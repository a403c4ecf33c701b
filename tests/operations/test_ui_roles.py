"""What the page's stream of status shows a key."""

import itertools
import json

import pytest

from switchyard.app.services import KEY
from switchyard.app.ui.viewers import Board
from tests.operations.conftest import bearer
from tests.scripted import ScriptedBackend

BROWSER = {"Accept": "text/html"}


@pytest.fixture
def client(make_client, keys_file):
    return make_client(ScriptedBackend(), keys_file=str(keys_file.path))


@pytest.mark.parametrize(("name", "sees_all"), [("ann", False), ("root", True), ("prom", True)])
def test_a_viewer_sees_what_its_role_may(client, name, sees_all):
    told = json.loads(client.get("/ui/status", headers=bearer(name)).text.split("data: ")[1])
    assert ("streams" in told) == ("recoveries" in told["models"][0]) == sees_all
    assert ("queue" in told) == (name == "root")
    assert told["models"][0]["state"] == "ready"
    told = client.get("/v1/status", headers=bearer(name)).json
    assert ("streams" in told) == ("recoveries" in told["models"][0]) == sees_all


def test_the_files_need_no_key_and_the_stream_does(client):
    assert client.get("/", headers=BROWSER).status_code == 200
    assert client.get("/ui/main.js").status_code == client.get("/ui/style.css").status_code == 200
    assert client.get("/ui/status").status_code == 401


def test_viewers_of_one_second_see_what_each_of_their_roles_may(client):
    for roles in itertools.permutations(["user", "metrics", "admin"]):
        board = Board()
        for role in roles * 2:
            frame, goes_on = board.frame(client.application.extensions[KEY], role, 5)
            told = json.loads(frame.removeprefix(b"data: "))
            assert (("queue" in told), ("streams" in told)) == (role == "admin", role != "user")
            assert goes_on
