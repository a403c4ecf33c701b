"""A host application whose tasks celery's workers run: where SWITCHYARD_URL is set in client mode,
else each process of the pool with its own model. The broker is a folder.
"""

import os
import pathlib

import celery
import flask

from switchyard import Switchyard

app = flask.Flask(__name__)
switchyard = Switchyard(app)
if "START_BEFORE_THE_FORK" in os.environ:
    switchyard.start()

folders = {one: pathlib.Path(__file__).parent / one for one in ("messages", "control", "results")}
for folder in folders.values():
    folder.mkdir(exist_ok=True)
queue = celery.Celery("tasks", broker="filesystem://", backend=f"file://{folders['results']}")
queue.conf.broker_transport_options = {
    "data_folder_in": str(folders["messages"]),
    "data_folder_out": str(folders["messages"]),
    "control_folder": str(folders["control"]),
}


@queue.task(name="text")
def text(**asked):
    return switchyard.generate(**asked).text


@queue.task(name="pieces")
def pieces(**asked):
    with app.app_context(), switchyard.stream(**asked) as stream:
        return list(stream)


@app.post("/tasks/<name>")
def begin(name):
    asked = flask.request.json
    options = asked.pop("options", {})
    return queue.tasks[name].apply_async(kwargs=asked, **options).id


@app.get("/tasks/<task_id>")
def look(task_id):
    result = queue.AsyncResult(task_id)
    return {"state": result.state, "result": str(result.result)}


@app.get("/tasks/<task_id>/pieces")
def look_at_pieces(task_id):
    return queue.AsyncResult(task_id).result


@app.delete("/tasks/<task_id>")
def stop(task_id):
    queue.control.revoke(task_id, terminate=True)
    return ""


@app.get("/")
def home():
    return "its own page"
