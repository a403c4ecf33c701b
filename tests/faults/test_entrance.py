"""The entrance: POSTs get threads in order, a few at a time."""

import contextlib
import random
import threading
import time
import types

import pytest

from switchyard import engine
from switchyard.server.body import Body
from switchyard.server.threads import entrance as module
from switchyard.server.threads.entrance import HOLD, PATIENCE, PLACES, Entrance
from tests.faults.heads import make_connection
from tests.faults.test_connections import connect, listener, make_worker

__all__ = ["connect", "listener", "make_worker"]


class Clock:
    """The time module of the entrance, and its alarms."""

    def __init__(self):
        self.now = 0.0
        self.alarms = []

    def monotonic(self):
        return self.now

    def set(self, seconds, call):
        self.alarms.append((self.now + seconds, call))

    def forward(self, seconds):
        end = self.now + seconds
        while due := [one for one in self.alarms if one[0] <= end]:
            first = min(due, key=lambda one: one[0])
            self.alarms.remove(first)
            self.now = max(self.now, first[0])
            first[1]()
        self.now = end


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "engine", types.SimpleNamespace(ALARMS=clock))
    return clock


class House:
    """An entrance, and who is inside, was ever let in, or was turned away."""

    def __init__(self):
        self.inside, self.begun, self.away, self.forgotten = [], [], [], []
        self.left = set()  # guests whose clients have left
        self.entrance = Entrance(
            self._begin, self.away.append, 100, self.left.__contains__, self.forgotten.append
        )

    def _begin(self, guest):
        self.inside.append(guest)
        self.begun.append(guest)

    def enter(self, *guests):
        for guest in guests:
            self.entrance.enter(guest)

    def leave(self, guest, is_refused=False):
        self.inside.remove(guest)
        self.entrance.leave(guest, is_refused)


@pytest.fixture
def house(clock):
    return House()


def test_requests_begin_in_order_and_a_few_at_a_time(house):
    draw = random.Random(0)
    for i in range(300):
        house.entrance.enter(i)
        while house.inside and draw.random() < 0.5:
            house.leave(draw.choice(house.inside))
        assert len(house.inside) <= PLACES
        assert len(house.inside) == PLACES or not house.entrance.num_waiting
    assert house.begun == [*range(len(house.begun))] and len(house.begun) > 100
    house.entrance.open()
    assert house.begun == [*range(300)]


def test_a_request_whose_client_has_left_takes_no_place_and_no_time(house):
    """Some thousands may come and leave before one that waits has its turn."""
    house.enter(*range(PLACES))
    house.left |= {*range(100, 5000)}
    house.enter(*range(100, 5000), "stays")
    assert not house.away
    house.leave(0)
    assert house.begun[PLACES:] == ["stays"]
    assert house.forgotten == [*range(100, 5000)]


def test_refused_requests_that_come_back_at_once_take_half_of_the_time(house, clock):
    house.enter(*range(20))
    for _ in range(200):  # each is inside for 10 ms
        inside = [*house.inside]
        clock.forward(0.01)
        for one in inside:
            house.leave(one, is_refused=True)
            house.entrance.enter(one)
    assert len(house.begun) == pytest.approx(100 * PLACES, rel=0.05)


def test_after_a_request_that_was_served_the_next_begins_at_once(house, clock):
    house.enter(*range(PLACES + 1))
    clock.forward(0.5)
    house.leave(0)
    assert house.begun[-1] == PLACES


def test_a_place_that_is_held_for_long_goes_to_the_next(house, clock):
    house.enter(*range(2 * PLACES))
    clock.forward(HOLD * 1.01)
    house.entrance.look()
    assert house.begun == [*range(2 * PLACES)] and not house.away
    house.entrance.enter("next")
    house.leave(0)  # it has no place to leave
    assert "next" not in house.begun


def test_nobody_waits_for_ever_or_in_too_long_a_queue(house, clock):
    house.enter(*range(PLACES + 100), "one too many")
    assert house.away == ["one too many"]
    while clock.now < PATIENCE:
        clock.forward(HOLD / 2)
        house.entrance.look()
    num_begun = len(house.begun)
    assert num_begun < PLACES + 100 and not house.entrance.num_waiting
    assert house.away[1:] == [*range(num_begun, PLACES + 100)]


def test_a_request_that_is_turned_away_says_so_before_its_body_is_read():
    with make_connection() as connection:
        connection.is_turned_away = True
        with pytest.raises(engine.Full, match="the queue is full: this request waited 10 s"):
            Body(connection, 9).read(1)


POST, GET = b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"


def test_posts_wait_at_the_entrance_and_others_pass(make_worker):
    begun = []
    worker = make_worker(nr_conns=0, enqueue_req=begun.append)
    with contextlib.ExitStack() as stack:
        posts = [stack.enter_context(make_connection(POST)) for _ in range(PLACES + 2)]
        get = stack.enter_context(make_connection(GET))
        for connection in (*posts, get):
            connection.wait_for_request(9.0, 9.0, 9.0, time.monotonic())
            worker._wait(connection, worker._on_request)
            worker._on_request(connection, None)
        assert begun == [*posts[:PLACES], get]
        worker._request = threading.local()
        worker._request.connection = posts[1]
        worker._leave_entrance()
        assert begun[-1] is posts[PLACES]
        worker._cap_keepalive(time.monotonic())  # the worker is to end
        assert begun[-1] is posts[PLACES + 1]


def test_all_waiting_connections_are_accepted_in_one_turn(make_worker, listener, connect):
    worker = make_worker(nr_conns=0, worker_connections=10)
    for _ in range(3):
        connect()
    worker.accept(listener)
    assert worker.nr_conns == len(worker._waiting) == 3
    for connection in [*worker._waiting]:
        worker._close(connection)
