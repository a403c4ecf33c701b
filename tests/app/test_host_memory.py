"""What applications with their own model leave behind, one after the other in one process."""

import json

import flask

from switchyard import engine
from switchyard.app import Switchyard
from tests.conftest import DEMO, run_code

ROUNDS = 5

CODE = """
import flask, gc, json, os, sys, threading
from switchyard import Switchyard, engine

HELLO = {"messages": [{"role": "user", "content": "Hello!"}], "temperature": 0}

def megabytes():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20

def ask():
    app = flask.Flask("shop")
    with Switchyard(app, model=sys.argv[1]) as switchyard:
        assert switchyard.generate(**HELLO).text.startswith("Hi!")
        assert "".join(switchyard.stream(**HELLO)).startswith("Hi!")
        assert app.test_client().post("/v1/chat/completions", json=HELLO).status_code == 200
        return megabytes()

for _ in range(int(sys.argv[2])):
    held = ask()
    gc.collect()
    told = {
        "open": held,
        "closed": megabytes(),
        "threads": [thread.name for thread in threading.enumerate()],
        "tasks": len(os.listdir("/proc/self/task")),
        "left": [str(o) for o in gc.get_objects() if isinstance(o, (engine.Engine, flask.Flask))],
    }
    print(json.dumps(told), flush=True)
"""


def test_five_applications_one_after_the_other_leave_nothing():
    rounds = [json.loads(line) for line in run_code(CODE, DEMO, str(ROUNDS)).splitlines()]
    assert len(rounds) == ROUNDS
    assert all(one["threads"] == ["MainThread"] and one["left"] == [] for one in rounds), rounds
    _, second, *later = rounds
    assert {one["tasks"] for one in later} == {second["tasks"]}  # the libraries' own
    size = second["open"] - second["closed"]
    # What leaks is there each time; what is in pieces in the heap comes and goes.
    assert min(one["closed"] for one in later) - second["closed"] < size / 4, rounds


def test_close_gives_memory_back_to_the_system(model_path, monkeypatch):
    given = []
    monkeypatch.setattr(engine, "give_memory_back", lambda: given.append(True))
    with Switchyard(flask.Flask("host"), model=model_path) as switchyard:
        assert switchyard.generate("x", max_tokens=2).completion_tokens == 2
        assert not given
    assert given
