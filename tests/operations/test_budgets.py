"""What a key may use in a day, a month or in all."""

import pytest

from switchyard.app import SettingsError
from switchyard.app.exceptions import BudgetSpent
from switchyard.app.ledger.budgets import Budgets
from switchyard.app.operations.keys import ApiKey, KeysError
from tests.operations.conftest import bearer, entry
from tests.operations.ledgers import DAYS, post, read
from tests.scripted import ScriptedBackend

BODY = {"prompt": [3, 4], "max_tokens": 3}  # 5 tokens


@pytest.fixture
def make(make_counted, keys_file):
    """With a key ann that has this budget, and one without, bob."""

    def make(tokens, period, backend=None, settings=None, **more):
        keys_file.write(
            entry("ann", budget_tokens=tokens, budget_period=period, **more), entry("bob")
        )
        return make_counted(backend or ScriptedBackend(), **(settings or {}))

    return make


def ask(client, name="ann", **more):
    return post(client, {**BODY, **more}, headers=bearer(name)).status_code


@pytest.mark.parametrize("period", ["day", "month", "total"])
def test_a_request_is_let_in_while_the_budget_has_its_prompt_and_a_token(make, period):
    client = make(8, period)
    assert [ask(client) for _ in range(4)] == [200, 200, 429, 429]
    assert ask(client, "bob") == 200


def test_it_is_told_in_the_words_of_each_api(make):
    client = make(5, "month")
    assert ask(client) == 200
    response = post(client, BODY, headers=bearer("ann"))
    error = response.json["error"]
    assert (response.status_code, error["type"], error["code"]) == (
        *(429, "insufficient_quota", "insufficient_quota"),
    )
    assert error["message"] == (
        "the API key ann has used 5 tokens of its budget of 5 a month; the budget starts again at"
        " 2026-12-01T00:00:00Z"
    )
    assert response.headers["x-should-retry"] == "false"
    assert "Retry-After" not in response.headers and "retry-after-ms" not in response.headers
    message = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    response = client.post("/v1/messages", json=message, headers=bearer("ann"))
    assert (response.status_code, response.headers["x-should-retry"]) == (429, "false")
    assert response.json["error"]["type"] == "rate_limit_error"
    assert "its budget of 5" in response.json["error"]["message"]


@pytest.mark.parametrize(("period", "later"), [("day", 200), ("month", 200), ("total", 429)])
def test_a_month_begins_anew_with_its_first_day(make, fill, wall, period, later):
    fill(("2026-11-30", "ann", "m", 1, 0, 3, 0, 2), ("2026-11-30", "bob", "m", 1, 0, 3, 0, 2))
    client = make(5, period)
    assert ask(client) == 429
    wall.now += 1
    assert ask(client) == later


@pytest.mark.parametrize(("period", "later"), [("day", 200), ("month", 429), ("total", 429)])
def test_a_day_within_a_month_renews_the_days_alone(make, wall, period, later):
    client = make(5, period)
    wall.now -= 86400
    assert ask(client) == 200
    assert ask(client) == 429
    wall.now += 86400
    assert ask(client) == later


def test_what_is_in_memory_is_what_stands_in_the_file(make, wall, path):
    client = make(1000, "total")
    for body in ({"n": 3}, {"prompt": [[3], [4, 5]], "n": 2}, {"max_tokens": 1}):
        assert ask(client, **body) == 200
    client.wait(3)
    [(_, _, _, _, prompt_tokens, completion_tokens)] = read(path, DAYS)
    assert prompt_tokens + completion_tokens == 3 * (2 + 3) + 2 * 3 + 12 + 2 + 1
    spent = client.ledger._budgets._spent["ann"].within("total", "2026-11-30")
    assert spent == prompt_tokens + completion_tokens
    assert client.ledger._budgets._reserved == {}


def test_a_restart_on_another_day_counts_what_is_of_its_period(make, wall):
    client = make(5, "day")
    assert ask(client) == 200
    client.wait()
    client.ledger.close()
    wall.now += 1
    for period, status in (("day", 200), ("month", 429), ("total", 429)):
        client = make(5, period)
        assert ask(client) == status
        client.wait()
        client.ledger.close()


def test_a_month_s_budget_is_not_that_of_the_year(make, fill):
    fill(*((day, "ann", "m", 1, 0, 3, 0, 2) for day in ("2026-10-30", "2025-11-30")))
    assert ask(make(5, "month")) == 200


def test_what_still_runs_counts_after_the_end_of_another():
    budgets = Budgets(lambda: 0.0)
    key = ApiKey(name="ann", hash=f"sha256:{'0' * 64}", budget_tokens=9, budget_period="day")
    assert [budgets.reserve(key, 1, 5), budgets.reserve(key, 1, 5)] == [5, 4]
    budgets.add("ann", 4, 0.0)
    budgets.give_back(key, 5)
    assert budgets.extend(key, 5) == 1
    with pytest.raises(
        BudgetSpent, match=r"has used 4 tokens .* have reserved 5; the budget starts"
    ):
        budgets.reserve(key, 1, 1)


@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize("period", ["day", "month"])
def test_a_period_is_that_of_utc_wherever_the_server_is(make, wall, period):
    client = make(5, period)
    assert ask(client) == 200
    says = "the budget starts again at 2026-12-01T00:00:00Z"
    assert says in post(client, BODY, headers=bearer("ann")).json["error"]["message"]
    wall.now += 1
    assert ask(client) == 200


def test_another_key_of_the_same_name_has_what_is_left(make, keys_file, clock):
    client = make(5, "total")
    assert ask(client) == 200
    client.wait()
    keys_file.write(entry("bob"))
    clock.now += 10
    assert ask(client) == 401
    ann = entry("prom", role="user", budget_tokens=5, budget_period="total")
    keys_file.write(ann.replace('"prom"', '"ann"'), entry("bob"))
    clock.now += 10
    assert ask(client, "prom") == 429


def test_a_budget_needs_a_ledger(make_keyed, keys_file):
    keys_file.write(entry("ann", budget_tokens=5, budget_period="day"))
    with pytest.raises(KeysError, match="ann: budget_tokens needs the server's ledger setting"):
        make_keyed(ScriptedBackend())
    assert issubclass(KeysError, SettingsError)


def test_a_refused_request_is_a_failure_and_costs_no_tokens(make, path):
    client = make(5, "day")
    assert [ask(client), ask(client)] == [200, 429]
    client.wait(2)
    assert read(path, DAYS) == [("2026-11-30", "ann", 2, 1, 2, 3)]
    assert read(path, "SELECT model FROM days") == [("scripted",)]


def test_what_is_spent_of_each_budget_is_a_number(make, fill):
    fill(("2020-01-01", "ann", "demo", 1, 0, 1000, 0, 0))  # of another month
    client = make(20, "month", settings={"metrics": "open"})
    assert ask(client) == 200
    client.wait()
    lines = {line for line in client.get("/metrics").text.splitlines() if "budget_tokens{" in line}
    name = "switchyard_budget_tokens"
    assert lines == {
        f'{name}{{key="ann",state="spent"}} 5.0',
        f'{name}{{key="ann",state="all"}} 20.0',
    }
