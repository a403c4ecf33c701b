"""What load balancers and operators hear of each state, and of each job, of several models."""

from dataclasses import replace
from types import SimpleNamespace

import flask
import pytest

from switchyard import engine
from switchyard.app.routes import health, probes, requests
from switchyard.app.services import KEY
from switchyard.engine.messages import JobState

WHY = {
    "loading": "the model is loading",
    "draining": "the server is finishing its requests and accepts no new ones",
    "recovering": "the generator failed and is recovering; jobs are waiting",
    "hanging": "a step of the generator does not return",
    "stopped": "the server has shut down",
    "unloaded": "the model is not loaded",
    "failed": "the model could not be loaded",
}


def client_of(**models):
    app = flask.Flask("host")
    app.extensions[KEY] = SimpleNamespace(models=SimpleNamespace(**models))
    for blueprint in (health.blueprint, probes.blueprint, probes.short, requests.blueprint):
        app.register_blueprint(blueprint)
    return app.test_client()


def model(name, state, load="start", progress=None, error=None):
    return SimpleNamespace(name=name, state=state, load=load, progress=progress, error=error)


def client_with(*models):
    by_name = {one.name: one for one in models}
    is_ready = all(one.state == "ready" for one in models if one.load == "start")
    return client_of(names=list(by_name), status=by_name.get, is_ready=is_ready)


@pytest.mark.parametrize("state", health.REASONS)
def test_each_state_but_ready_is_told_with_its_reason(state):
    client = client_with(model("first", "ready"), model("second", state))
    told = client.get("/health/ready")
    assert told.status_code == 503 and told.headers["Retry-After"] == "1"
    assert told.json == {
        "status": "unready",
        "models": {"first": "ready", "second": state},
        "reasons": {"second": WHY[state]},
        "progress": {},
    }
    for path in ("/health", "/v1/health/ready"):
        told = client.get(path)
        assert told.status_code == 503 and told.headers["Retry-After"] == "1"
        message = "Loading model" if state == "loading" else WHY[state]
        assert told.json["error"] == {"code": 503, "message": message, "type": "unavailable_error"}
    told = client.get("/v2/health/ready")
    assert (told.status_code, told.headers["Retry-After"]) == (503, "1")
    assert told.json == {"ready": False}
    told = client.get("/ping")
    assert (told.status_code, told.data, told.mimetype) == (503, b"", "text/plain")


def test_a_model_on_demand_need_not_be_ready():
    client = client_with(model("first", "ready"), model("second", "unloaded", "demand"))
    nim = {"object": "health.response", "message": "Service is ready.", "status": "ready"}
    live = {**nim, "message": "Service is live.", "status": "live"}
    for path, told in (
        ("/health/ready", {"status": "ready", "models": {"first": "ready", "second": "unloaded"}}),
        ("/health", {"status": "ok"}),
        ("/v1/health/ready", nim),
        ("/v1/health/live", live),
        ("/v2/health/ready", {"ready": True}),
        ("/v2/health/live", {"live": True}),
    ):
        assert client.get(path).json == told
    assert client.get("/ping").status_code == 200


def test_the_progress_of_each_load_is_told_from_its_beginning():
    client = client_with(
        model("first", "loading", progress=0.0),
        model("second", "unloaded", "demand", progress=0.66666),
        model("third", "ready"),
    )
    told = client.get("/health/ready").json
    assert told["progress"] == {"first": 0.0, "second": 0.667}
    assert told["reasons"] == {"first": WHY["loading"]}


def test_a_models_own_error_is_told_instead_of_its_states_reason():
    error = engine.ModelError(f"no weights for cmpl-{'a0' * 16}")  # which opens a stream
    client = client_with(model("first", "failed", error=error))
    assert client.get("/health/ready").json["reasons"] == {"first": "no weights for cmpl-…"}


OWN = JobState("cmpl-1a-3", "decode", None, 5, 6, 7.00049, 8, -9, "mine", "@10.0.0.1", "c")
OTHERS = JobState("cmpl-2b-0", "pending", 2, 1, 0, 0.5, 0, 1, "theirs", "@10.0.0.2", "d")


class Jobs:
    """An engine that has these jobs, and knows those of other servers after a wait."""

    def __init__(self, name, here=(), elsewhere=(), at=()):
        self.config = SimpleNamespace(name=name, at=at)
        self.here, self.elsewhere, self.cancelled, self.waits = here, elsewhere, [], []

    def jobs(self, timeout=0.0):
        self.waits.append(timeout)
        return [*self.here, *(self.elsewhere if timeout else ())]

    def cancel(self, identifier):
        self.cancelled.append(identifier)
        return 1


def ask(client, method, path, address):
    return client.open(path, method=method, environ_overrides={"REMOTE_ADDR": address})


def test_a_row_of_a_request_tells_each_of_its_numbers():
    client = client_of(engines=[Jobs("first", [OWN]), Jobs("second", [OTHERS])])
    own, others = ask(client, "GET", "/v1/requests", "10.0.0.1").json["data"]
    assert own.pop("id").startswith("request-") and others.pop("id").startswith("request-")
    assert own == {
        **{"object": "request", "index": 3, "request_id": "mine", "model": "first"},
        **{"state": "decode", "place": None, "priority": -9, "age": 7.0},
        **{"prompt_tokens": 5, "completion_tokens": 6, "pages": 8},
    }
    assert (others["model"], others["request_id"], others["place"]) == ("second", "", 2)


def test_a_request_is_cancelled_on_each_engine_that_has_jobs_of_it(caplog):
    engines = [Jobs("first", [OWN, OTHERS]), Jobs("second", [replace(OWN, identifier="cmpl-1a-4")])]
    client = client_of(engines=engines)
    told = ask(client, "DELETE", "/v1/requests/cmpl-1a", "10.0.0.1")
    assert told.json == {"id": "cmpl-1a", "object": "request", "cancelled": 2}
    assert [one.cancelled for one in engines] == [["cmpl-1a-3"], ["cmpl-1a-4"]]
    assert [one.waits for one in engines] == [[0.0], [0.0]] and not caplog.records


def test_other_servers_are_asked_for_a_request_that_is_not_here():
    engines = [Jobs("own", [OTHERS]), Jobs("shared", elsewhere=[OWN], at=["unix:/a"])]
    client = client_of(engines=engines)
    assert ask(client, "DELETE", "/v1/requests/cmpl-1a", "10.0.0.1").json["cancelled"] == 1
    assert [one.cancelled for one in engines] == [[], ["cmpl-1a-3"]]
    assert [one.waits for one in engines] == [[0.0], [0.0, 1.0]]
