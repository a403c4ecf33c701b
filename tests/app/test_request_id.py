"""What a request is called: by its client, or else by the server."""

import pytest

from tests.app.conftest import fails, listed, wait_until_empty
from tests.scripted import ScriptedBackend, ticking

HEADER = "X-Request-Id"
URL = "/v1/completions"
LONG = {"prompt": [1, 2, 3], "max_tokens": 2000}


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/health/live", None, 200),
        ("GET", "/v1/models", None, 200),
        ("GET", "/nowhere", None, 404),
        ("GET", URL, None, 405),
        ("POST", URL, {"prompt": ""}, 400),
        ("POST", URL, {"prompt": "x"}, 200),
        ("POST", URL, {"prompt": "x", "stream": True}, 200),
    ],
)
def test_every_answer_says_it(client, method, path, body, status):
    given = client.open(path, method=method, json=body, headers={HEADER: "trace-1:a/b"})
    made = client.open(path, method=method, json=body)
    assert given.status_code == made.status_code == status
    assert given.headers.getlist(HEADER) == ["trace-1:a/b"]
    [identifier] = made.headers.getlist(HEADER)
    assert identifier.startswith("req_") and len(identifier) == 36


@pytest.mark.parametrize("insane", ["", "x" * 129, "two words", "<b>", "é", 'a"b', "a;b"])
def test_what_is_not_sane_is_replaced(client, insane):
    response = client.get("/health/live", headers={HEADER: insane})
    assert response.headers[HEADER].startswith("req_")


def test_the_log_says_it_and_a_failure_of_it(make_client, caplog):
    with caplog.at_level("DEBUG", "switchyard.app"):
        client = make_client(ScriptedBackend(fails()))
        client.post(URL, json={"prompt": "x"}, headers={HEADER: "mine"})
    assert "request mine: 1 jobs" in caplog.text and "request mine: no luck" in caplog.text


def test_clients_may_repeat_theirs(make_client, ask):
    """Two requests at once with the same one are two all the same."""
    client = make_client(ScriptedBackend(ticking))
    answers = [ask(client, LONG, headers={HEADER: "same"}) for _ in range(2)]
    rows = listed(client, 2)
    assert [row["request_id"] for row in rows] == ["same", "same"]
    assert rows[0]["id"] != rows[1]["id"]
    for row in rows:
        assert client.delete(f"/v1/requests/{row['id']}").json["cancelled"] == 1
    for answer in answers:
        assert answer.get(timeout=20).headers[HEADER] == "same"
    wait_until_empty(client)
