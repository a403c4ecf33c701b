"""Changes of models: borders of what is asked, what is told meanwhile, and what is counted."""

import json
import logging
from types import SimpleNamespace

import pytest

from switchyard import engine
from switchyard.app.formats.tabby import bodies
from switchyard.app.http import origins
from switchyard.app.lifecycle import loads
from switchyard.app.lifecycle.changes import ModelChange
from switchyard.app.services import KEY
from tests.app.refused import error_of
from tests.app.test_lifecycle import events, load, rows
from tests.scripted import ScriptedBackend

BATCH = {"max_batch_size": 2}


class Change:
    """A load whose progress a test tells."""

    name, way, seconds = "a", "beside", 1.23456

    def __init__(self, *told, error=None):
        self.told = [*told, error]
        self.looks = 0

    def wait(self, timeout):
        self.looks += 1
        if isinstance(self.told[0], Exception):
            raise self.told[0]
        return self.told.pop(0)

    @property
    def progress(self):
        return self.told[0] if self.looks > 2 else None


@pytest.fixture
def client(serve):
    return serve()


def test_progress_is_told_as_each_client_reads_it():
    told = [json.loads(one[6:]) for one in loads.events_of_load(Change(0.0, 0.45678, 1.0))]
    assert [one["progress"] for one in told[:-1]] == [0.0, 0.457, 1.0]
    assert {one["status"] for one in told[:-1]} == {"loading"}
    assert told[-1] == {"model": "a", "status": "loaded", "way": "beside", "seconds": 1.235}
    told = [json.loads(one[6:]) for one in bodies.events_of_load(Change(0.0, 0.45678, 1.0))]
    shown = [(one["module"], one["modules"], one["status"]) for one in told[:-1]]
    assert shown == [(number, 100, "processing") for number in (0, 45, 100)]


@pytest.mark.parametrize("events_of", [loads.events_of_load, bodies.events_of_load])
def test_an_error_is_the_last_that_is_told_of_a_load(events_of):
    change = Change(0.5, error=engine.ModelError("no weights"))
    told = [json.loads(one[6:]) for one in events_of(change)]
    assert len(told) == 2 and told[-1]["error"]["message"] == "no weights"


@pytest.mark.parametrize(("timeout", "looks"), [((), 3), ((0,), 1)])
def test_an_answer_begins_with_the_first_progress_or_when_its_wait_is_over(timeout, looks):
    change = Change(*[0.5] * 1000)
    loads.begun(change, *timeout)
    assert change.looks == looks


def test_the_stream_of_changes_tells_progress_until_the_server_is_over(monkeypatch):
    models, now, states = SimpleNamespace(names=["a"], is_over=False), [0.25], [0.25, 0.5]
    models.status = lambda name: SimpleNamespace(state="loading", progress=now[0])

    def sleep(seconds):
        assert not models.is_over
        models.is_over = not states
        now[0] = states.pop(0) if states else None

    monkeypatch.setattr(loads, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=sleep))
    told = [json.loads(one[6:])["data"] for one in loads.events_of_models(models, 10.0)]
    assert [one["progress"]["value"] for one in told] == [0.25, 0.5]


def test_comments_keep_the_stream_of_changes_open_one_a_heartbeat(monkeypatch):
    class Models:
        names, is_over = (), False

    now = [0.0]

    def sleep(seconds):
        now[0] += seconds
        assert now[0] < 100, "no comment"

    monkeypatch.setattr(loads, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    stream = loads.events_of_models(Models, 10.0)
    for expected in (10.0, 20.0, 30.0):
        assert (next(stream), now[0]) == (b": \n\n", expected)


@pytest.mark.parametrize(
    ("drain", "status"),
    [("0", 202), ("86400", 202), *((d, 400) for d in ("86400.1", "-0.1", "x", "", "nan", "inf"))],
)
def test_an_unload_takes_the_time_that_is_asked(client, drain, status):
    told = []
    unload = client.models.unload
    client.models.unload = lambda name, drain=None: told.append(drain) or unload(name, drain)
    response = client.delete(f"/admin/models/first?drain={drain}")
    assert response.status_code == status
    if status == 202:
        assert told == [float(drain)]
        assert response.json == {"model": "first", "status": "draining", "progress": None}
    else:
        assert response.json["error"]["message"].startswith("drain must be")
        assert told == [] and client.models.status("first").state == "ready"


@pytest.mark.parametrize(
    ("method", "path", "body", "says"),
    [
        ("post", "/admin/models/second", {}, "load second"),
        ("post", "/admin/models/second", BATCH, f"load second, {json.dumps(BATCH)}"),
        ("post", "/admin/models/first", {}, "load first"),
        ("delete", "/admin/models/first", None, "unload first"),
        ("put", "/admin/aliases/other", {"model": "second"}, "set alias other to second"),
        ("post", "/models/load", {"model": "second"}, "load second"),
        ("post", "/models/unload", {"model": "first"}, "unload first"),
        ("post", "/v1/model/load", {"name": "second"}, "load second"),
        ("post", "/v1/model/unload", None, "unload first"),
    ],
)
def test_each_change_is_an_operators_and_in_the_audit(client, caplog, method, path, body, says):
    with caplog.at_level(logging.WARNING, "switchyard.audit"):
        abroad = {"REMOTE_ADDR": "10.1.2.3"}
        refused = client.open(path, method=method, json=body, environ_base=abroad)
        states = [client.models.status(name).state for name in client.models.names]
        assert (refused.status_code, states) == (403, ["ready", "unloaded"])
        client.open(path, method=method, json=body).get_data()
    lines = [r.getMessage() for r in caplog.records if r.name == "switchyard.audit"]
    assert lines == [f"address:127.0.0.1: {says}"]


def max_jobs(client):
    return client.application.extensions[KEY].settings.max_jobs


@pytest.mark.parametrize("path", ["/admin/models/third", "/v1/model/load", "/models/load"])
def test_a_model_of_a_directory_takes_no_more_jobs_than_there_are_threads(client, tmp_path, path):
    settings = client.application.extensions[KEY].settings
    object.__setattr__(settings, "models", settings.models[:1])  # as if the second were new
    body = {"name": "third"} if "v1" in path else {"model": "third"} if "load" in path else {}
    assert error_of(client.post(path, json=body))["param"] == "max_batch_size"
    assert "third" not in client.models.names


def test_a_model_counts_once_and_one_that_is_not_there_not_at_all(client):
    most = max_jobs(client)
    for name in ("third", "first", "third"):  # each again, and with the most that there may be
        load(client, name)

    def rest(*names):
        """The most that may wait for the second model beside those of the others."""
        used = sum(client.models.served(name).config.max_jobs for name in names)
        return most - used + client.models.served("second").config.max_pending

    more = rest("first", "second", "third") + 1
    error_of(client.post("/admin/models/second", json={"max_pending": more}))
    client.models.unload("third").wait(20)
    client.opened.next["third"] = ScriptedBackend(open_error=engine.ModelError("no weights"))
    told = client.post("/admin/models/third", json={}).text
    assert client.models.status("third").state == "failed", told
    more = rest("first", "second")
    load(client, "second", max_pending=more)
    error_of(client.post("/admin/models/second", json={"max_pending": more + 1}))


def test_a_draft_model_that_is_served_already_may_be_asked_for_again(client, model_path):
    for _ in range(2):
        load(client, "second", draft_model=model_path)
    object.__setattr__(client.models.served("second").config, "draft_model", "/a/draft")
    response = client.post("/admin/models/first", json={"draft_model": "/a/draft"})
    assert "is not a directory in models_dir" not in response.get_data(as_text=True)


def test_settings_outside_the_tables_reach_a_model_of_a_directory(serve):
    client = serve(max_pending=7)
    load(client, "third")
    assert client.models.served("third").config.max_pending == 7


def test_an_unknown_model_is_told_each_name_once(client):
    load(client, "third")
    error = error_of(client.post(f"/admin/models/{'n' * 101}", json={}), 404)
    told = f"model '{'n' * 100}' does not exist; available: first, second, third"
    assert (error["param"], error["message"]) == ("model", told)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/admin/models/unknown", {}, 404),
        ("/admin/models/first", {"model": "unknown"}, 400),
        ("/admin/models/first", {"draft_model": "unknown"}, 400),
        ("/v1/model/load", {"name": "unknown"}, 404),
        ("/models/load", {"model": "unknown"}, 404),
        ("/admin/aliases/a", {"model": "unknown"}, 404),
    ],
)
def test_an_error_names_a_few_of_many_directories(client, tmp_path, path, body, status):
    for i in range(500):
        (tmp_path / "models" / f"m{i}").mkdir()
        (tmp_path / "models" / f"m{i}" / "config.json").touch()
    send = client.put if "aliases" in path else client.post
    response = send(path, json=body)
    message = error_of(response, status)["message"]
    assert len(message) < 250 and ("more" in message or "second" in message), message


def test_without_models_dir_a_path_is_refused_with_no_names(client):
    object.__setattr__(client.application.extensions[KEY].settings, "models_dir", "")
    error = error_of(client.post("/admin/models/first", json={"draft_model": "/etc"}))
    assert error["message"].endswith("is not a directory in models_dir; available: none")


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/v1/model/load", {"name": "third"}, "third"),
        ("/admin/models/mine", {"model": "third"}, "mine"),
    ],
)
def test_directories_are_listed_once_and_to_operators_alone(client, path, body, name):
    def names(**more):
        return [card["id"] for card in client.get("/v1/model/list", **more).json["data"]]

    assert names() == ["first", "second", "third"]
    assert names(headers={"Via": "proxy"}) == ["first", "second"]
    events(client.post(path, json=body))
    assert names() == [*rows(client)] == ["first", "second", name]


def test_only_directories_with_a_model_are_listed(client, tmp_path):
    (tmp_path / "models" / "empty").mkdir()
    (tmp_path / "models" / "file").touch()
    assert [*client.application.extensions[KEY].settings.directories()] == ["third"]
    response = client.post("/models/load", json={"model": "empty"})
    assert response.status_code == 404


def test_one_that_would_be_too_many_evicts_another(serve):
    client = serve(max_loaded=2)
    for name in ("second", "third"):
        load(client, name)
    states = [client.models.status(name).state for name in ("first", "second", "third")]
    assert states == ["ready", "unloaded", "ready"]


def test_a_models_template_is_read_once(client):
    services = client.application.extensions[KEY]
    model = client.models.get()
    assert services.template(model) is services.template(model)


def test_pages_may_read_what_they_need_and_ask_in_each_way(serve):
    client = serve(cors_origins=["https://chat.example"])
    headers = {"Origin": "https://chat.example", "Access-Control-Request-Headers": "x-a, x-b"}
    response = client.options("/v1/models", headers=headers)
    told = {name[15:]: v for name, v in response.headers if name.startswith("Access-Control-")}
    routes = [rule.methods for rule in client.application.url_map.iter_rules()]
    asked = set().union(*routes) - {"HEAD", "OPTIONS"}  # of which the first needs no leave
    assert set(told["Allow-Methods"].split(", ")) == asked and told["Max-Age"] == "600"
    assert told["Allow-Headers"] == "x-a, x-b" and told["Allow-Origin"] == "https://chat.example"
    exposed = told["Expose-Headers"].split(", ")
    assert exposed[:2] == ["Retry-After", "X-Request-Id"] and len(exposed) == 2 + 6 + 6
    assert "x-ratelimit-remaining-tokens" in exposed
    assert "anthropic-ratelimit-requests-reset" in exposed
    assert set(exposed) == set(origins.EXPOSED)


def test_an_alias_that_no_request_could_match_is_refused(client):
    for alias in ("g*t", "*-x"):
        error = error_of(client.put(f"/admin/aliases/{alias}", json={"model": "second"}))
        message = f"alias: '{alias}' must be a name, with at most one *, at its end"
        assert error["message"] == message
    assert client.models.status("second").aliases == ()
    response = client.put("/admin/aliases/g*", json={"model": "second"})
    assert response.json["model"] == "second"


def test_a_load_of_an_alias_is_told_the_models_name(client):
    error = error_of(client.post("/admin/models/chat", json={}), 404)
    assert error["param"] == "model"
    assert error["message"] == "'chat' is an alias: use the model's own name, 'first'"
    response = client.post("/admin/models/other", json={})
    assert "'other' does not exist; available: first, second, third" in response.text


def test_what_a_change_may_set():
    """A new setting of a model is one of a change, unless it is left out. Paths are."""
    assert set(ModelChange.model_fields) == {
        *("backend", "cache_mode", "cache_tokens", "default_frequency_penalty"),
        *("default_max_tokens", "default_repetition_penalty", "default_stop_on_loop", "device"),
        *("draft_model", "drain", "fair_wait_factor", "gpu_reserve", "gpu_split", "gpus"),
        *("hang_exit", "hang_timeout", "idle_timeout", "link", "load", "max_batch_size"),
        *("max_chunk_size", "max_gap_ms", "max_pending", "max_pending_tokens", "max_priority"),
        *("max_seq_len", "model", "ngram_draft", "num_draft_tokens", "products", "reasoning_end"),
        *("reasoning_start", "replicas", "rope_alpha", "rope_scale", "silence_timeout"),
        *("tensor_parallel", "tool_format", "unpacked_weights", "way"),
    }
