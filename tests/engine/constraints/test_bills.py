"""The account of masks, by job and by client."""

import pytest

from switchyard import engine
from switchyard.engine.grammar.bills import CREDIT, GRACE, HALF_LIFE, MAX_CLIENTS, MAX_MASK, Bills
from switchyard.engine.grammar.turns import REST, SlowTurns


@pytest.fixture
def now():
    return [0.0]


@pytest.fixture
def bills(now):
    return Bills(lambda: now[0])


def masks(bill, seconds, number):
    """How many masks are taken until the job ends; `number` if it doesn't."""
    for i in range(number):
        bill.charge_mask(seconds)
        try:
            bill.check()
        except engine.ConstraintTooSlow as error:
            assert error.param == "constraint"
            return i + 1
    return number


@pytest.mark.parametrize(
    ("seconds", "number"),
    [(0.0, 1000), (0.0001, 1000), (0.0199, 1000), (0.0201, GRACE), (0.3, GRACE), (MAX_MASK + 1, 1)],
)
def test_a_job_ends_once_its_average_counts(bills, seconds, number):
    assert masks(bills.bill("a"), seconds, 1000) == number


def test_slow_tokens_count_among_quick_ones(bills):
    bill = bills.bill("a")
    assert masks(bill, 0.0, 100) == 100
    assert masks(bill, 0.4, 100) == 6  # 2.4 s for 106 tokens


def test_the_work_to_take_a_token_counts(bills):
    bill = bills.bill("a")
    assert masks(bill, 0.0, GRACE) == GRACE
    bill.charge_token(GRACE * 0.021)
    with pytest.raises(engine.ConstraintTooSlow):
        bill.check()


def test_a_client_pays_across_its_jobs_and_no_other_client_does(bills, now):
    for _ in range(4):
        masks(bills.bill("a"), 0.1, 100)
    assert bills.debt("a") > CREDIT
    assert masks(bills.bill("a"), 0.021, 100) == 1
    assert masks(bills.bill("a"), 0.0001, 1000) == 1000  # quick ones go on
    assert masks(bills.bill("b"), 0.021, 100) == GRACE
    now[0] += 10 * HALF_LIFE
    assert masks(bills.bill("a"), 0.021, 100) == GRACE


def test_what_a_job_makes_up_for_is_no_debt(bills):
    bill = bills.bill("a")
    bill.charge_mask(0.3)
    assert bills.debt("a") == pytest.approx(0.28)
    for _ in range(20):
        bill.charge_mask(0.0)
    assert bills.debt("a") == pytest.approx(0.0)


def test_the_latest_debtors_are_remembered(bills):
    for i in range(MAX_CLIENTS + 5):
        bills.bill(f"client {i}").charge_mask(0.4)
    debts = [bills.debt(f"client {i}") > 0 for i in range(MAX_CLIENTS + 5)]
    assert debts == [False] * 5 + [True] * MAX_CLIENTS


def test_turns_take_a_bounded_part_of_the_time(now):
    turns = SlowTurns(lambda: now[0])
    assert turns.is_free
    turns.take(0.5)
    assert not turns.is_free
    now[0] += 0.1
    turns.end(0.1)
    now[0] += 0.1 * REST - 0.01
    assert not turns.is_free
    now[0] += 0.02
    assert turns.is_free
