"""`GET /v1/usage`: whose use it tells, of which days, in which form."""

import csv
import io
import pathlib
import shutil
from datetime import datetime

import pytest

from switchyard.app.ledger import ledger
from switchyard.app.routes import usage as route
from tests.operations.conftest import bearer, entry
from tests.operations.ledgers import post
from tests.scripted import ScriptedBackend

SUMS = ("requests", "failed", "prompt_tokens", "cached_tokens", "completion_tokens")
ROWS = [  # as in the file
    ("2026-10-31", "ann", "m", 1, 0, 10, 0, 1),
    ("2026-11-01", "ann", "m", 2, 1, 20, 5, 2),
    ("2026-11-01", "bob", "m", 4, 0, 40, 0, 4),
    ("2026-11-30", "ann", "n", 8, 0, 80, 0, 8),
    ("2026-12-01", "ann", "m", 16, 0, 160, 0, 16),
]
NOVEMBER = {"from": "2026-11-01", "to": "2026-11-30"}


@pytest.fixture
def client(make_counted, fill):
    fill(*ROWS)
    return make_counted(ScriptedBackend())


def test_the_ledgers_file_may_have_any_name(make_open, tmp_path):
    client = make_open(ScriptedBackend(), ledger=str(tmp_path / "of 50%41? #1.db"))
    post(client, {"prompt": [3, 4], "max_tokens": 1})
    client.wait()
    [row] = client.get("/v1/usage", query_string=NOVEMBER).json["data"]
    assert (row["requests"], row["prompt_tokens"]) == (1, 2)


def ask(client, name="root", **query):
    return client.get("/v1/usage", query_string=query, headers=bearer(name))


def rows(client, name="root", **query):
    response = ask(client, name, **query)
    assert response.status_code == 200, response.json
    assert response.json["object"] == "list"
    return [tuple(row.values()) for row in response.json["data"]]


@pytest.mark.parameter("from", "/v1/usage")
@pytest.mark.parameter("to", "/v1/usage")
def test_it_tells_the_days_from_the_first_to_the_last(client):
    assert rows(client, **NOVEMBER) == ROWS[1:4]
    assert rows(client, **{"from": "2026-11-30", "to": "2026-11-30"}) == ROWS[3:4]
    assert rows(client, to="2026-12-31") == ROWS[4:]  # from the first of its month
    assert list(ask(client, **NOVEMBER).json["data"][0]) == ["day", "key", "model", *SUMS]


@pytest.mark.parameter("group_by", "/v1/usage")
def test_rows_are_sums_by_what_is_named(client):
    assert rows(client, **NOVEMBER, group_by="key") == [
        *(("ann", 10, 1, 100, 5, 10), ("bob", 4, 0, 40, 0, 4))
    ]
    assert rows(client, **NOVEMBER, group_by="model, day") == [
        ("2026-11-01", "m", 6, 1, 60, 5, 6),
        ("2026-11-30", "n", 8, 0, 80, 0, 8),
    ]


def test_a_key_sees_its_own_alone_and_an_admin_all(client):
    assert rows(client, "ann", **NOVEMBER) == [ROWS[1], ROWS[3]]
    assert rows(client, "bob", **NOVEMBER, group_by="day") == [("2026-11-01", *ROWS[2][3:])]
    assert ask(client, "prom", **NOVEMBER).status_code == 403
    assert ask(client, "wrong", **NOVEMBER).status_code == 401


def test_without_keys_all_see_all(make_open, fill):
    fill(*ROWS)
    client = make_open(ScriptedBackend())
    assert rows(client, **NOVEMBER) == ROWS[1:4]


@pytest.mark.parameter("format", "/v1/usage")
def test_a_table_has_a_head_and_no_formulas(client, fill):
    names = ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", 'a,"b"']
    fill(*(("2026-11-02", "bob", name, 1, 0, 1, 0, 1) for name in names))
    response = ask(client, "bob", **NOVEMBER, format="csv", group_by="model")
    assert response.mimetype == "text/csv"
    head, *cells = csv.reader(io.StringIO(response.get_data(as_text=True), newline=""))
    assert head == ["model", *SUMS]
    given = {row[0] for row in cells}
    assert given == {"m", 'a,"b"', *(f"'{name}" for name in names[:5])}


@pytest.mark.parametrize("names", ["day,key,model", "model,day,key", "key,day,model,day"])
def test_a_table_has_the_columns_of_the_list(client, names):
    response = ask(client, **NOVEMBER, format="csv", group_by=names)
    head, *cells = csv.reader(io.StringIO(response.get_data(as_text=True), newline=""))
    assert head == ["day", "key", "model", *SUMS]
    assert cells == [[str(cell) for cell in row] for row in ROWS[1:4]]


@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize("seconds", [1793491200, 1796083199])  # the first and last of November
def test_today_is_that_of_utc_wherever_the_server_is(client, monkeypatch, seconds):
    class Fixed(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.fromtimestamp(seconds, tz)

    monkeypatch.setattr(route, "datetime", Fixed)
    wanted = [row for row in ROWS[1:4] if seconds == 1796083199 or row[0] == "2026-11-01"]
    assert rows(client) == wanted


def test_what_a_key_has_used_stays_when_it_is_removed(client, keys_file, clock, wall):
    assert post(client, {"prompt": "x", "max_tokens": 1}, headers=bearer("ann")).status_code == 200
    client.wait()
    day = {"from": "2026-11-30", "to": "2026-11-30", "group_by": "key,model"}
    before = rows(client, **day)
    keys_file.write(entry("bob"), entry("root"))
    clock.now += 10
    assert ask(client, "ann", **day).status_code == 401
    assert rows(client, **day) == before
    assert [row[0] for row in before] == ["ann", "ann"]


def test_a_client_sees_its_own_last_request(client, wall):
    usage = post(client, {"prompt": "x y", "max_tokens": 3}, headers=bearer("bob")).json["usage"]
    [row] = rows(client, "bob", **{"from": "2026-11-30", "to": "2026-11-30"})
    assert row[3:] == (1, 0, usage["prompt_tokens"], 0, usage["completion_tokens"])


@pytest.mark.parametrize(
    ("query", "name", "says"),
    [
        ({"from": "november"}, "from", "must be a day such as 2026-11-01"),
        ({"to": "2026-02-30"}, "to", "must be a day such as"),
        ({"to": "2026-11-1x"}, "to", "must be a day such as"),
        ({"from": "2026-12-01", "to": "2026-11-30"}, "from", "2026-12-01 is after 2026-11-30"),
        ({"from": "2025-11-30", "to": "2026-12-01"}, "from", "more than 366 days"),
        ({"group_by": "day,user"}, "group_by", "must be one or more of day,key,model"),
        ({"group_by": "day,"}, "group_by", "must be one or more of"),
        ({"format": "xml"}, "format", "'json' or 'csv'"),
        ({"until": "2026-11-01"}, "until", "unknown parameter"),
    ],
)
def test_what_it_does_not_understand_is_named(client, query, name, says):
    response = ask(client, **query)
    assert response.status_code == 400
    assert response.json["error"]["param"] == name and says in response.json["error"]["message"]


def test_a_whole_leap_year_is_told(client):
    assert ask(client, **{"from": "2024-01-01", "to": "2024-12-31"}).status_code == 200


def test_what_would_be_too_long_is_refused(client, monkeypatch):
    monkeypatch.setattr(route, "MAX_ROWS", 2)
    response = ask(client, **NOVEMBER)
    assert response.status_code == 400 and response.json["error"]["param"] == "group_by"
    assert len(rows(client, **NOVEMBER, group_by="key")) == 2


def test_a_server_without_a_ledger_says_what_to_set(make_keyed):
    response = ask(make_keyed(ScriptedBackend()))
    assert response.status_code == 501 and "set `ledger`" in response.json["error"]["message"]
    assert response.headers["x-should-retry"] == "false"


def test_to_ask_is_no_request_of_the_limits(make_counted, keys_file):
    keys_file.write(entry("ann", rpm=1))
    client = make_counted(ScriptedBackend())
    assert [ask(client, "ann").status_code for _ in range(3)] == [200] * 3


@pytest.mark.parametrize("also", [("",), ("", "-wal"), ("", "-wal", "-shm")], ids=len)
def test_a_file_that_is_removed_while_the_server_runs_is_made_anew_with_its_rows(
    client, path, wall, monkeypatch, caplog, also
):
    monkeypatch.setattr(ledger, "FLUSH", 20)
    body = {"prompt": [3, 4], "max_tokens": 1}
    for number in range(2):
        post(client, body, headers=bearer("bob"))
        client.wait()
        before = rows(client, **{"from": "2026-11-30", "to": "2026-11-30"})
        for ending in also:
            pathlib.Path(f"{path}{ending}").unlink(missing_ok=ending != "")
        assert rows(client, **{"from": "2026-11-30", "to": "2026-11-30"}) == before
        assert len(caplog.records) == number + 1
        assert f"the ledger {path} was removed while the server was running" in caplog.text
    assert path.stat().st_mode & 0o777 == 0o600
    post(client, body, headers=bearer("bob"))
    client.wait()
    assert [row[3] for row in rows(client, "bob", **NOVEMBER)] == [4, 3]


def test_a_ledger_that_cannot_be_read_is_a_503(client, path):
    shutil.rmtree(path.parent)
    response = ask(client)
    assert response.status_code == 503
    assert "the ledger can't be read now" in response.json["error"]["message"]
