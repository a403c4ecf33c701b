"""Models that operators load, unload and swap: our routes, llama.cpp's and TabbyAPI's."""

import json
import time
from concurrent import futures

import pytest

from switchyard import engine
from switchyard.app.routes import router
from switchyard.engine.memory import gpus
from tests.app.refused import error_of
from tests.conftest import wait_for
from tests.scripted import ScriptedBackend, says, ticking


def complete(client, model=None):
    named = {} if model is None else {"model": model}
    return client.post("/v1/completions", json={"prompt": "x", "max_tokens": 8, **named})


def text_of(client, model=None):
    response = complete(client, model)
    assert response.status_code == 200, response.json
    return response.json["choices"][0]["text"]


def events(response):
    assert response.status_code == 200, response.json
    *frames, rest = response.get_data(as_text=True).split("\n\n")
    assert rest == ""  # else the last one has no end
    return [json.loads(one.removeprefix("data: ")) for one in frames if one.startswith("data")]


def load(client, name, **settings):
    """Change a model; the event that says that it is done."""
    *_, last = events(client.post(f"/admin/models/{name}", json=settings))
    assert last["status"] == "loaded"
    return last


def rows(client):
    return {row["id"]: row for row in client.get("/v1/models").json["data"]}


@pytest.fixture
def client(serve):
    return serve()


def test_each_answers_by_its_name_and_alias_and_the_first_by_none(client):
    assert text_of(client, "second") == "second-64"
    assert {text_of(client, name) for name in (None, "chat", "first")} == {"first-64"}
    assert complete(client, "fourth").status_code == 404


def test_a_key_aborts_a_generation_whose_model_has_given_way(serve, gate, ask):
    client = serve({"first": ScriptedBackend(ticking, gate=gate)})
    body = {"prompt": "x", "max_length": 2000, "genkey": "one"}
    answers = ask(client, body, "/api/v1/generate")
    gate.wait_until_held()
    assert load(client, "first", max_pending=32)["way"]
    assert client.models.status("first").num_jobs == 1
    told = client.post("/api/extra/abort", json={"genkey": "one"}).json
    gate.open()
    assert told == {"success": True}
    assert answers.get(timeout=20).json["results"][0]["finish_reason"] == "cancelled"


def test_a_swap_answers_with_its_progress_and_changes_the_settings(client):
    assert load(client, "first", max_pending=32)["way"] == "beside"
    assert text_of(client) == "first-32"
    load(client, "first", max_batch_size=16)
    config = client.models.served("first").config
    assert (config.max_pending, config.max_batch_size) == (32, 16)  # what isn't said stays


def test_requests_at_work_end_on_the_old_one(serve, gate, ask):
    client = serve({"second": ScriptedBackend(says("old"), gate=gate)})
    client.models.load("second").wait(20)
    answers = ask(client, {"prompt": "x", "model": "second"})
    gate.wait_until_held()
    load(client, "second", max_pending=32)
    assert text_of(client, "second") == "second-32"
    gate.open()
    assert answers.get(timeout=20).json["choices"][0]["text"] == "old"


def test_a_second_load_of_a_model_that_loads_is_refused(serve, monkeypatch):
    monkeypatch.setattr(router, "SOON", 0.05)
    backend = ScriptedBackend(says("late"))
    backend.opening.clear()
    client = serve({"second": backend})
    assert client.post("/models/load", json={"model": "second"}).json == {"success": True}
    assert rows(client)["second"]["status"]["value"] == "loading"
    for path in ("/models/load", "/admin/models/second"):
        response = client.post(path, json={"model": "second"} if "admin" not in path else {})
        assert error_of(response, 409)["code"] == "load_under_way"
    backend.opening.set()
    assert text_of(client, "second") == "late"


def test_unload_is_llama_cpps_or_our_own(client):
    assert client.post("/models/unload", json={"model": "first"}).json == {"success": True}
    assert text_of(client) == "first-64"  # by the next request
    assert client.delete("/admin/models/second?drain=1").status_code == 202
    assert client.delete("/admin/models/fourth").status_code == 404


@pytest.mark.parametrize("path", ["/admin/models/second", "/admin/models/third", "/models/load"])
def test_an_unload_ends_a_load_that_is_under_way(serve, ask, path):
    name = "third" if "third" in path else "second"
    backend = ScriptedBackend(says("late"))
    backend.opening.clear()
    client = serve({name: backend})
    ask(client, {"model": name} if path == "/models/load" else {}, path)
    while name not in client.opened.backends:
        time.sleep(0.005)
    load = client.models._entries[name].load
    assert client.delete(f"/admin/models/{name}").status_code == 202
    assert rows(client)[name]["status"]["value"] == "loading"
    backend.opening.set()
    with pytest.raises(engine.EngineError):
        load.wait(20)
    assert rows(client)[name]["status"]["value"] == "unloaded"


def test_a_directory_of_models_dir_is_loaded_by_its_name_alone(serve):
    client = serve(max_batch_size=32)
    assert "third" not in rows(client)
    assert client.post("/models/load", json={"model": "third"}).json == {"success": True}
    assert text_of(client, "third") == "third-64"
    for path in ("../first", "/etc", "."):
        assert client.post("/models/load", json={"model": path}).status_code == 404
        error = error_of(client.post("/admin/models/other", json={"model": path}))
        assert error["param"] == "model"


@pytest.mark.parametrize(("name", "named"), [("third", {}), ("other", {"model": "third"})])
def test_settings_of_a_first_load_that_failed_are_forgotten(serve, name, named):
    client = serve({name: ScriptedBackend(open_error=engine.ModelError("no weights"))})
    body = {**named, "max_pending": 32, "load": "demand"}
    response = client.post(f"/admin/models/{name}", json=body)
    assert response.json["error"]["message"] == "no weights"
    assert rows(client)[name]["status"]["value"] == "failed"
    load(client, name)
    assert text_of(client, name) == f"{name}-64"
    assert client.models.status(name).load == "manual"


def test_tabby_loads_with_its_progress_and_becomes_the_default(client):
    assert "third" in [card["id"] for card in client.get("/v1/model/list").json["data"]]
    body = {"name": "third", "cache_size": 4096, "cache_mode": "FP16", "max_seq_len": 1024}
    told = events(client.post("/v1/model/load", json=body))
    end = {"model_type": "model", "module": 100, "modules": 100, "status": "finished"}
    assert told[-1] == end
    config = client.models.served("third").config
    assert (config.cache_tokens, config.max_seq_len) == (4096, 1024)
    assert text_of(client) == "third-64"
    assert client.post("/v1/model/unload").status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/model/load", {"name": "second", "cache_size": 100}, "cache_tokens"),
        ("/v1/model/load", {"name": "second", "cache_mode": "9,1"}, "cache_mode"),
        ("/v1/model/load", {"name": "second", "vision": True}, "vision"),
        ("/admin/models/second", {"cache_tokens": 100}, "cache_tokens"),
        ("/admin/models/second", {"cache_tokens": "x"}, "cache_tokens"),
        ("/admin/models/second", {"draft_model": "/etc"}, "draft_model"),
        ("/v1/model/load", {"name": "second", "draft": {"draft_model_name": "/"}}, "draft_model"),
        ("/admin/models/second", {"loras": [{"path": "/etc"}]}, "loras"),
        ("/admin/models/second", {"bind": "0.0.0.0:1"}, "bind"),
        ("/admin/models/second", {"way": "sideways"}, "way"),
        ("/admin/models/second", {"max_pending": 10_000}, "max_batch_size"),
        ("/admin/models/second", {"max_batch_size": 0}, "max_batch_size"),
        ("/admin/models/second", {"idle_timeout": -1}, "idle_timeout"),
        ("/models/load", {}, "model"),
    ],
)
def test_what_can_not_be_honoured_is_named(client, path, body, param):
    error = error_of(client.post(path, json=body))
    assert error["param"] == param and param in error["message"]
    assert client.models.status("second").state == "unloaded"


def test_a_gpu_that_is_not_there_is_named_and_nothing_changes(client, monkeypatch):
    for name in ("gpus", "visible"):
        monkeypatch.setattr(gpus, name, lambda: [None] * 2)
    monkeypatch.setattr(gpus, "has_gpu", lambda: True)
    for name in ("first", "third"):
        error = error_of(client.post(f"/admin/models/{name}", json={"gpus": [0, 2]}))
        assert error["param"] == "gpus"
        assert error["message"] == "gpus names 2, but this process sees 2, numbered from 0"
    assert client.models.names == ["first", "second"] and text_of(client) == "first-64"


def test_a_load_that_fails_says_why_and_the_old_one_goes_on(client):
    client.opened.next["first"] = ScriptedBackend(open_error=engine.NoRoom("3 of 2 GiB"))
    response = client.post("/admin/models/first", json={"way": "beside"})
    error = error_of(response, 409)
    assert error["code"] == "no_memory" and "3 of 2 GiB" in error["message"]
    assert response.headers["x-should-retry"] == "false"
    status = rows(client)["first"]["status"]
    assert (status["value"], status["failed"], status["reason"]) == ("loaded", False, None)
    assert text_of(client) == "first-64"


def test_an_alias_points_elsewhere_from_the_next_request_on(client):
    response = client.put("/admin/aliases/chat", json={"model": "second"})
    assert response.json == {"alias": "chat", "model": "second", "before": "first"}
    assert text_of(client, "chat") == "second-64"
    assert client.put("/admin/aliases/first", json={"model": "second"}).status_code == 409


def test_large_requests_wait_for_a_load_outside_the_gate(serve, ask):
    backend = ScriptedBackend(says("late"))
    backend.opening.clear()
    client = serve({"second": backend})
    body = {"prompt": "x " * 9000, "model": "second"}
    for _ in range(2):
        ask(client, body)
    wait_for(lambda: client.models.status("second").num_waiting == 2)
    error = error_of(client.post("/v1/completions", json={**body, "model": "first"}))
    assert error["code"] == "context_length_exceeded"
    assert client.models.status("second").num_waiting == 2
    backend.opening.set()


def test_one_that_only_operators_load_says_so(client):
    load(client, "second", load="manual")
    client.models.unload("second").wait(20)
    assert error_of(complete(client, "second"), 503)["code"] == "model_unloaded"


def test_tabbys_load_is_the_default_though_its_client_has_left(serve):
    backend = ScriptedBackend(says("third"))
    backend.opening.clear()
    client = serve({"third": backend})
    with futures.ThreadPoolExecutor() as pool:
        answer = pool.submit(client.post, "/v1/model/load", json={"name": "third"}, buffered=False)
        while (entry := client.models._entries.get("third")) is None or entry.load is None:
            time.sleep(0.005)
        load = entry.load
        backend.opening.set()
        answer.result(20).close()  # of which nothing was read
    assert load.wait(20) is None
    assert text_of(client) == "third"


def test_the_crowd_that_watches_is_bounded(client):
    watching = [client.get("/models/sse", buffered=False) for _ in range(4)]
    assert [one.status_code for one in watching] == [200] * 4
    refused = client.get("/models/sse")
    assert refused.status_code == 429 and int(refused.headers["Retry-After"]) > 0
    for one in watching:
        one.close()
    again = client.get("/models/sse", buffered=False)
    assert again.status_code == 200
    again.close()
    abroad = {"REMOTE_ADDR": "10.1.2.3"}
    assert client.get("/models/sse", environ_base=abroad).status_code == 403


def test_changes_are_told_as_they_come(client):
    response = client.get("/models/sse", buffered=False)
    stream = iter(response.response)
    first = [json.loads(next(stream).decode().removeprefix("data: ")) for _ in range(2)]
    assert [one["data"]["status"] for one in first] == ["loaded", "unloaded"]
    client.models.load("second").wait(20)
    told = json.loads(next(stream).decode().removeprefix("data: "))
    assert (told["model"], told["data"]["status"]) == ("second", "loaded")
    response.close()
