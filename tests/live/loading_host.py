"""A host application whose model takes a minute to load, for test_host_end.py."""

import time

import flask

from switchyard import Switchyard
from switchyard.engine.models import opening


def load(*_):
    print("loads", flush=True)
    time.sleep(60)


opening._open = load
app = flask.Flask(__name__)
switchyard = Switchyard(app, link="thread")


@app.get("/")
def home():
    return "its own page"


@app.get("/text")
def text():
    return switchyard.generate("x").text
