"""Tokens that running requests reserve, of a key's minute and of its budget."""

import datetime
import itertools
import queue
import random
import threading

import pytest

from switchyard import engine
from switchyard.app.exceptions import BudgetSpent, LimitReached
from switchyard.app.ledger.budgets import Budgets
from switchyard.app.operations.account import Account
from switchyard.app.operations.keys import parse_keys
from switchyard.app.operations.limits import Quotas
from switchyard.app.operations.reservation import EXTENSION
from switchyard.engine.job import USUAL_TOKENS
from switchyard.engine.sampling import Sampling
from switchyard.engine.schedule.usual import MOST_MEANS, UsualAnswers
from tests.operations.conftest import Clock, bearer, entry
from tests.operations.ledgers import post
from tests.scripted import ScriptedBackend, job

PAGE = 256
DAY = datetime.date(2026, 11, 30)


class Counted(Budgets):
    """The budgets, as a recorder that adds what accounts have used, as the ledger does."""

    def begin(self, account):
        pass

    def end(self, account):
        self.add(account.key.name, account.tokens, 0.0)

    @property
    def spent(self):
        found = self._spent.get("ann")
        return 0 if found is None else found.within("total", "1970-01-01")


class House:
    """A key ann with these limits, and its accounts."""

    def __init__(self, **limits):
        [key] = parse_keys(entry("ann", **limits), 0, True).by_name.values()
        self.budgets = Counted(lambda: 0.0)
        self.quota = Quotas(Clock(), self.budgets).of(key)

    def account(self):
        account = Account([self.budgets])
        account.quota = self.quota
        account.enter()
        return account

    @property
    def reserved(self):
        """What is reserved of the minute and of the budget."""
        if self.quota.tokens is not None:
            self.quota.tokens.level()  # settles
        in_bucket = 0 if self.quota.tokens is None else self.quota.tokens._reserved
        return in_bucket, self.budgets._reserved.get("ann", 0)


def used(job, new_tokens, reason=None, cached=0):
    rows, prompt = job.num_sequences, job.num_prompt_tokens
    return engine.Used(
        job.identifier, prompt, cached, prompt - cached, new_tokens * rows, reason, None, rows
    )


# Requests


def test_a_budget_is_not_overspent_by_asking_at_once(make_counted, keys_file, gate):
    keys_file.write(entry("ann", budget_tokens=500, budget_period="total"))
    client = make_counted(ScriptedBackend(gate=gate))
    body = {"prompt": [3, 4, 5, 6], "max_tokens": 196}  # 200 tokens
    answers = queue.Queue()

    def ask():
        answers.put(post(client.application.test_client(), body, headers=bearer("ann")))

    threads = [threading.Thread(target=ask) for _ in range(40)]
    for thread in threads:
        thread.start()
    assert {answers.get(timeout=20).status_code for _ in range(37)} == {429}
    gate.open()
    for thread in threads:
        thread.join(20)
    paid = [answers.get().json["usage"]["total_tokens"] for _ in range(3)]
    assert sorted(paid) == [100, 200, 200]
    client.wait(40)
    assert "has used 500 tokens" in post(client, body, headers=bearer("ann")).text
    assert client.ledger._budgets._reserved == {}


def test_chats_at_once_overspend_a_small_minute_by_an_extension_each_at_most():
    """Chats that may have 30,000 tokens each, and take as many as they get."""
    house, running = House(tpm=60_000), []
    with pytest.raises(LimitReached):
        for number in range(100):
            one, account = job(f"{number}", 30_000, prompt=tuple(range(20))), house.account()
            account.reserve([one], 1, "chat", PAGE)
            account.expect("m", [one], 1, True)
            running.append((account, one))
    assert len(running) >= 4
    new, limits = dict.fromkeys(running, 0), dict.fromkeys(running, 0)
    while new:
        for each in list(new):  # in turns, a token each, and two more until the end is known
            account, one = each
            new[each] += 1
            if new[each] >= limits[each]:
                limits[each] = account.note(used(one, new[each]))
            if new[each] >= limits[each]:
                account.note(used(one, new.pop(each) + 2, "length"))
                account.answered()
    owed = sum(u.computed_tokens + u.new_tokens for a, _ in running for u in a.used.values())
    assert 60_000 <= owed <= 60_000 + EXTENSION * len(running)
    assert owed - 60_000 <= 3 * len(running)  # in fact


@pytest.mark.parametrize("limits", [{"tpm": 100}, {"budget_tokens": 100, "budget_period": "day"}])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_answer_ends_when_no_token_is_left(make_counted, keys_file, limits, is_streamed):
    keys_file.write(entry("ann", **limits))
    client = make_counted(ScriptedBackend())
    body = {"prompt": [3, 4], "max_tokens": 1500, "stream": is_streamed}
    response = post(client, body, headers=bearer("ann"))
    assert response.status_code == 200
    assert '"finish_reason":"length","stop_reason":"quota"' in response.text.replace('": "', '":"')
    client.wait()
    rows = client.ledger.usage(DAY, DAY, ["key"], None, 2)
    assert 100 <= rows[0]["completion_tokens"] + rows[0]["prompt_tokens"] <= 100 + EXTENSION


# Reservations


class Running:
    """A request at work: its jobs bring tokens until they may have no more, and two beyond."""

    def __init__(self, house, rng, number):
        self.rng, self.account = rng, house.account()
        sampling = Sampling(cfg_scale=2.0) if rng.random() < 0.3 else Sampling()
        guided = (
            {"sampling": sampling, "negative_prompt": (1, 2)} if sampling.cfg_scale != 1 else {}
        )
        n = rng.randrange(1, 4)
        self.jobs = [
            job(f"{number}-{i}", rng.randrange(1, 300), prompt=tuple(range(40)), **guided)
            for i in range(n)
        ]
        self.account.reserve(self.jobs, n, "chat", PAGE)
        self.account.expect("m", self.jobs, n, True)
        self.left = {each: 0 for each in self.jobs}
        self.limits = dict.fromkeys(self.jobs, 0)
        self.is_answered = False

    @property
    def is_over(self):
        return self.is_answered and not self.left

    def step(self):
        """Anything that may happen next."""
        if self.rng.random() < 0.05 and not self.is_answered:
            self.is_answered = True  # the client has left, or all is sent
            self.account.answered()
        elif not self.left:
            self.is_answered = True
            self.account.answered()
        elif self.is_fresh and self.rng.random() < 0.1:
            self.left.clear()
            self.account.withdraw()
        else:
            self._generate(self.rng.choice(list(self.left)))

    @property
    def is_fresh(self):
        return not self.account.used and len(self.left) == len(self.jobs) and not self.is_answered

    def _generate(self, one):
        new = self.left[one] = min(self.left[one] + self.rng.randrange(1, 4), one.max_new_tokens)
        if new >= self.limits[one]:
            self.limits[one] = self.account.note(used(one, new))
        reason = self.rng.choice(["stop", "failed", "cancelled"])
        if new >= one.max_new_tokens or new >= self.limits[one] or self.rng.random() < 0.01:
            self.account.note(used(one, min(new + 2, one.max_new_tokens), reason))
            del self.left[one]


@pytest.mark.parametrize("seed", range(40))
def test_all_is_given_back_once_whatever_happens_in_whatever_order(seed):
    rng = random.Random(seed)
    limits = {"tpm": rng.randrange(200, 3000)} if seed % 3 else {}
    if seed % 3 != 1:
        limits |= {"budget_tokens": rng.randrange(200, 3000), "budget_period": "total"}
    house, running, accounts, most = House(**limits), [], [], 0
    for number in itertools.count():
        if number < 60 and rng.random() < 0.2:
            try:
                running.append(Running(house, rng, number))
                accounts.append(running[-1].account)
            except (LimitReached, BudgetSpent):
                pass
        most = max(most, len(running))
        for one in [rng.choice(running)] if running else []:
            one.step()
            if one.is_over:
                running.remove(one)
        if number >= 60 and not running:
            break
    engine.ALARMS.set(0.0, (over := threading.Event()).set)  # after what was set before
    assert over.wait(20)
    assert house.reserved == (0, 0)
    if house.quota.tokens is not None:
        owed = sum(u.computed_tokens + u.new_tokens for a in accounts for u in a.used.values())
        assert house.quota.tokens._level == house.quota.tokens.size - owed
    if "budget_tokens" in limits:
        assert house.budgets.spent == sum(account.tokens for account in accounts)
        assert house.budgets.spent <= limits["budget_tokens"] + EXTENSION * most


def test_a_request_that_is_refused_reserves_nothing():
    house = House(tpm=1000, budget_tokens=50, budget_period="day")
    with pytest.raises(BudgetSpent, match="this request needs at least 101"):
        house.account().reserve([job(prompt=tuple(range(100)))], 1, "chat", PAGE)
    assert house.reserved == (0, 0)


def test_a_prompt_beyond_the_minute_waits_for_a_full_bucket():
    house = House(tpm=100)
    one, other = house.account(), house.account()
    one.reserve([job(prompt=tuple(range(500)))], 1, "chat", PAGE)
    with pytest.raises(LimitReached, match="100 tokens a minute"):
        other.reserve([job()], 1, "chat", PAGE)


def test_choices_reserve_a_page_each_and_prompts_that_are_scored_whole():
    for more, prompts in (({}, 600 + 2 * PAGE), ({"prompt_logprobs": 0}, 3 * 600)):
        house = House(budget_tokens=10_000, budget_period="day")
        jobs = [job(f"r-{i}", 5, prompt=tuple(range(600)), **more) for i in range(3)]
        house.account().reserve(jobs, 3, "chat", PAGE)
        assert house.reserved == (0, prompts + 3 * 5)


# Usual answers


def test_a_request_reserves_four_usual_answers_at_most():
    house = House(budget_tokens=10_000, budget_period="day")
    one, other = house.account(), house.account()
    a, b = job("a-0", 5000), job("b-0", 5000)
    one.reserve([a], 1, "chat", PAGE)
    assert house.reserved == (0, 3 + 4 * USUAL_TOKENS)
    one.expect("m", [a], 1, True)
    one.note(used(a, 20, "stop"))
    one.answered()
    other.reserve([b], 1, "chat", PAGE)
    assert house.reserved == (0, 3 + 4 * (USUAL_TOKENS - 20))
    third = house.account()
    third.reserve([job("c-0", 5000)], 1, "completion", PAGE)
    assert house.reserved == (0, 3 + 4 * (USUAL_TOKENS - 20) + 3 + 4 * USUAL_TOKENS)


def test_of_very_many_clients_the_one_that_asked_last_is_remembered():
    usual = UsualAnswers()
    for i in range(MOST_MEANS + 1):
        usual.note(f"{i}", "chat", 0)
    assert usual.of("0", "chat") == USUAL_TOKENS
    assert usual.of("1", "chat") == usual.of(f"{MOST_MEANS}", "chat") == USUAL_TOKENS * 7 / 8
