"""Leases of models: what a request waits for, holds and gives back."""

import pytest

from switchyard.app import leases
from switchyard.app.http.gate import LARGE
from switchyard.app.services import KEY
from tests.app.refused import error_of
from tests.scripted import ScriptedBackend


def test_a_large_request_is_inside_the_gate_again_behind_the_load_of_its_model(serve):
    client = serve()
    gate = client.application.extensions[KEY].gate
    entered, inside, enter = [], [], gate.enter
    gate.enter = lambda size, check: entered.append(size) or enter(size, check)
    second = client.models.get("second")
    check_room = second.check_room
    second.check_room = lambda *args: inside.append(gate.num_inside) or check_room(*args)
    body = {"prompt": "x" * LARGE, "model": "second"}
    for expected in (2, 3):  # the next time it is there
        client.post("/v1/completions", json=body).get_data()
        assert len(entered) == expected
    assert inside and set(inside) == {1} and gate.num_inside == 0


@pytest.mark.parametrize(
    ("queue_timeout", "load_wait", "status", "code"),
    [(0.2, 2, 408, "queue_timeout"), (3, 0.1, 503, "overloaded")],
)
def test_a_wait_for_a_load_ends_with_the_queues_deadline_or_its_own(
    serve, queue_timeout, load_wait, status, code
):
    backend = ScriptedBackend()
    backend.opening.clear()
    client = serve({"second": backend}, queue_timeout=queue_timeout, load_wait=load_wait)
    response = client.post("/v1/completions", json={"prompt": "x", "model": "second"})
    assert error_of(response, status)["code"] == code  # without usage


def test_no_lease_is_left_behind_any_end_of_a_request(serve):
    client = serve()
    for body, status in (
        ({"prompt": "x"}, 200),
        ({"prompt": "x" * 90000}, 400),
        ({"prompt": "x", "stream": True}, 200),
        ({"prompt": "x", "n": 10_000}, 400),
        ({"prompt": ["x", "y"], "n": 2}, 200),
        ({"prompt": "x", "temperature": -1}, 400),
    ):
        response = client.post("/v1/completions", json=body)
        response.get_data()
        response.close()
        assert response.status_code == status, response.json
        assert client.models.status("first").num_leases == 0


def test_a_request_leases_a_model_once_however_often_it_asks(serve):
    client = serve()
    with client.application.test_request_context():
        assert leases.model_of("first") is leases.model_of("first")
        assert client.models.status("first").num_leases == 1
        leases.release()
        assert client.models.status("first").num_leases == 0


def test_a_request_that_asks_for_two_models_leases_and_releases_both(serve):
    client = serve()
    names = "first", "second"
    with client.application.test_request_context():
        for expected in (1, 0, 1):  # a message of a connection may follow a release
            if expected:
                assert [leases.model_of(name).config.name for name in names] == [*names]
            else:
                leases.release()
            assert [client.models.status(name).num_leases for name in names] == [expected] * 2
        leases.release()
