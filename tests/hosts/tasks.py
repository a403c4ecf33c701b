"""Tasks of a host application, in client mode by SWITCHYARD_URL. The broker is a directory."""

import pathlib

import celery
import flask

from switchyard import Switchyard

app = flask.Flask(__name__)
switchyard = Switchyard(app)
tasks = celery.Celery("tasks", broker="filesystem://", backend="file://results")
tasks.conf.broker_transport_options = {
    "data_folder_in": "queue",
    "data_folder_out": "queue",
    "control_folder": "control",
}


@tasks.task(name="answer")
def answer(prompt, **parameters):
    return switchyard.generate(prompt, **parameters).text


@tasks.task(name="tell")
def tell(path, prompt, **parameters):
    """Into a file, piece by piece."""
    with pathlib.Path(path).open("w") as file:
        for piece in switchyard.stream(prompt, **parameters):
            print(repr(piece), file=file, flush=True)
