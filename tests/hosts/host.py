"""A host application: in client mode where SWITCHYARD_URL is set, else with its own model."""

import flask

from switchyard import Switchyard

app = flask.Flask(__name__)
switchyard = Switchyard(app, url_prefix="/llm")


@app.get("/")
def home():
    return "its own page"


@app.post("/text")
def text():
    return switchyard.generate(**flask.request.json).text


@app.post("/stream")
def stream():
    return flask.Response(switchyard.stream(**flask.request.json), mimetype="text/plain")
