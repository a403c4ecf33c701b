"""Tokens of prompts for each iteration: the gap is kept, and nobody waits longer than promised."""

import random

import pytest

from switchyard.engine.schedule.budget import Budget
from switchyard.engine.schedule.pending import Pending
from tests.scripted import job

USUAL, MOST, FACTOR = 512, 2048, 4.0
STEP, TOKEN = 0.004, 1 / 72_000  # seconds of a decode step, and of a prompt's token

# Prompt tokens and new tokens, at random; requests a second.
MIXES = {
    "chats": (lambda draw: (int(draw.lognormvariate(5.8, 0.8)) + 1, draw.randint(20, 300)), 60),
    "long": (lambda draw: (draw.randint(2000, 8000), draw.randint(10, 60)), 7),
    "short": (lambda draw: (draw.randint(1, 40), draw.randint(1, 30)), 400),
    "two kinds": (lambda draw: (draw.choice((30, 30, 30, 6000)), 40), 25),
    "bursts": (lambda draw: (draw.randint(100, 900), 30), 70),
}


class Server:
    """Iterations of a simulated engine: its admission is the engine thread's, its budget real."""

    def __init__(self, gap=0.05, places=256):
        self.budget, self.pending = Budget(USUAL, MOST, gap), Pending(FACTOR)
        self.now, self.places = 0.0, places
        self.prompts, self.decoding = {}, {}  # tokens left, by identifier
        self.limits = {}  # new tokens of the jobs in `prompts`
        self.iterations = []  # (seconds, tokens of prompts, whether a job decoded)

    def submit(self, one):
        self.pending.push(one)

    def admit(self):
        """The jobs that start."""
        while self.pending and len(self.prompts) + len(self.decoding) < self.places:
            num_left = sum(min(left, USUAL) for left in self.prompts.values())
            if not self.budget.has_room(num_left, self.most):
                return
            one = self.pending.candidates()[0]
            self.pending.start(one.identifier)
            self.prompts[one.identifier] = len(one.prompt)
            self.limits[one.identifier] = one.max_new_tokens
            yield one

    @property
    def most(self):
        return self.budget.tokens if self.decoding else USUAL

    def iterate(self):
        """Returns the identifiers of jobs that have ended."""
        is_decoding, spent = bool(self.decoding), 0
        self.budget.begin(self.most)
        for identifier, left in list(self.prompts.items()):
            share = self.budget.share(min(left, USUAL))
            self.budget.spend(share)
            spent += share
            self.prompts[identifier] -= share
        seconds = STEP + TOKEN * spent
        self.now += seconds
        self.budget.end(seconds, is_decoding)
        self.iterations.append((seconds, spent, is_decoding))
        ended = [one for one, left in self.decoding.items() if left == 1]
        self.decoding = {one: left - 1 for one, left in self.decoding.items() if left > 1}
        for identifier in [one for one, left in self.prompts.items() if not left]:
            del self.prompts[identifier]
            self.decoding[identifier] = self.limits.pop(identifier)
        return ended


@pytest.mark.parametrize("mix", MIXES)
def test_nobody_starves_and_everybody_starts_within_the_promised_time(mix):
    """The promise: `FACTOR` times the computing of the jobs that wait at a job's arrival, its own
    included, with the steps between, and of those that have begun. The batch has places.
    """
    a_token = TOKEN + STEP / (USUAL / 2)  # an iteration in which one waits is at least half full
    draw, server = random.Random(mix), Server(places=10_000)
    make, rate = MIXES[mix]
    due, number, ended, came, longest, started = 0.0, 0, set(), {}, 0, 0
    while len(ended) < 2000:
        while due <= server.now and number < 2000:
            for _ in range(100 if mix == "bursts" else 1):
                num_prompt, num_new = make(draw)
                one = job(f"{number}", num_new, prompt=(1,) * num_prompt, usual_tokens=1)
                server.submit(one)
                work = num_prompt + min(num_new, 4)
                waiting = sum(one[1] for one in came.values())
                came[one.identifier] = started, work, waiting + work, server.now
                longest, number = max(longest, work), number + 1
            due += draw.expovariate(rate) * (100 if mix == "bursts" else 1)
        for one in server.admit():
            then, work, fair, arrived = came.pop(one.identifier)
            started += work
            assert started - then <= FACTOR * fair + longest
            assert server.now - arrived <= (FACTOR * fair + 2 * longest + MOST) * a_token
        ended.update(server.iterate())
    assert not came and not server.pending and not server.prompts


@pytest.mark.parametrize("gap", [0.012, 0.02, 0.05])
def test_an_iteration_stays_within_the_gap_and_uses_it_while_prompts_wait(gap):
    server = Server(gap)
    for i in range(400):
        server.submit(job(f"{i}", 50, prompt=(1,) * 700))
    while server.pending:
        list(server.admit())
        server.iterate()
    beside = [(s, n) for s, n, is_decoding in server.iterations[20:] if is_decoding]
    assert max(seconds for seconds, _ in beside) <= gap * 1.1
    most = min(MOST, (gap - STEP) / TOKEN)
    busy = [n for _, n in beside[:-20]]
    assert sum(busy) / len(busy) > 0.8 * most


def test_what_no_budget_can_keep_still_lets_prompts_go_on():
    server = Server(gap=STEP / 2)
    server.submit(job("stream", 10_000, prompt=(1,)))
    server.submit(job("long", 1, prompt=(1,) * 5000))
    while server.pending or server.prompts:
        list(server.admit())
        server.iterate()
    assert server.iterations[-5][1] == server.budget.least == USUAL // 4


def test_while_no_prompt_waits_the_budget_is_the_usual_one_again():
    budget = Budget(USUAL, MOST)
    seen = []
    for waits in (True, True, True, False, False, False):
        budget.has_room(MOST if waits else 0, MOST)
        budget.end(0.01, is_decoding=True)
        seen.append(budget.tokens)
    assert seen == [1024, 2048, 2048, 1024, 512, 512]


@pytest.mark.parametrize("budget", [16, 64, 512])
def test_shares_are_in_order_whole_or_worth_a_pass(budget):
    draw = random.Random(budget)
    for _ in range(300):
        one = Budget(budget, budget)
        one.begin(one.tokens)
        lefts = [draw.randint(1, 2 * budget) for _ in range(draw.randint(1, 9))]
        shares = []
        for left in lefts:
            shares.append(one.share(left))
            one.spend(shares[-1])
        assert sum(shares) <= budget and shares[0] == min(lefts[0], budget)
        rows = {budget, *(1 << i for i in range(5, 10))}
        assert all(s in {0, left, *rows} for s, left in zip(shares, lefts, strict=True))
