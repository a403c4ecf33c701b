"""The table of models: loads on demand, leases, evictions, waits."""

import threading

import pytest

from switchyard import engine
from switchyard.engine.messages import Stopped
from switchyard.engine.models import lifecycle
from tests.conftest import wait_for
from tests.engine.models.asked import end_of, in_threads
from tests.scripted import job


def test_eight_requests_at_once_load_an_unloaded_model_once(table):
    backend = table.closed("b")
    models = table.start("a", "b")
    assert models.status("b").state == "unloaded"
    leases = in_threads(8, lambda: models.lease("b"))
    wait_for(lambda: models.status("b").num_waiting == 8)
    assert models.status("b").state == "loading"
    backend.opening.set()
    leases.join()
    assert len({lease.engine for lease in leases}) == 1
    assert [name for name, *_ in table.backends] == ["a", "b"]
    for lease in leases:
        lease.release()
    assert models.status("b").num_leases == 0 and table.loaded() == ["b"]


def test_the_least_recently_used_goes_and_never_one_in_use(served):
    table = served(size=20)
    models = table.start(*"abc")
    table.use("a", "b", "a")
    table.use("c")  # for b, which was not used for longer
    assert table.loaded() == ["a", "c"]
    with models.lease("a"):
        table.use("b")
        assert table.loaded() == ["a", "b"]


def test_an_engine_that_is_lost_amid_the_end_of_all_is_told(table):
    models = table.start("a", "b")
    table.use("a")
    models.drain()
    lost = models.get("a")
    lost.deliver([Stopped(engine.DeviceLost("the device is lost"))])
    assert models.wait_until_stopped(0) is lost


def test_a_job_at_work_keeps_its_model(served):
    table = served(size=20)
    gate = table.gated("a")
    table.start(*"abc")
    stream = table.submit("a")
    table.use("b", "c")
    assert table.loaded() == ["a", "c"]
    gate.open()
    assert end_of(stream) is engine.Finished


def test_a_load_waits_until_others_are_done_with_its_memory(served):
    table = served(size=10)
    models = table.start("a", "b")
    lease = models.lease("a")
    results = in_threads(1, lambda: models.lease("b"))
    wait_for(lambda: models.status("b").num_waiting == 1)
    results.join(0.1)
    assert table.loaded() == ["a"]
    lease.release()
    results.join()[0].release()
    assert table.loaded() == ["b"]


def test_an_operator_is_told_what_a_load_has_waited_for(served):
    table = served(max_loaded=1, load_wait=0.1)
    models = table.start("a", "b")
    with (
        models.lease("a"),
        pytest.raises(engine.Loading, match="a place within max_loaded, that busy models"),
    ):
        models.load("b").wait(20)
    assert table.loaded() == ["a"]


def test_a_request_is_told_what_its_load_has_waited_for(served):
    table = served(size=10, clock=lambda: table.now)
    models = table.start("a", "b")
    with models.lease("a"):
        results = in_threads(1, lambda: models.lease("b"))
        table.wait_for_looks()
        table.now += 20.0  # load_wait
        [error] = results.join()
    assert isinstance(error, engine.Loading) and "waits for memory" in str(error)
    assert error.retry_after == lifecycle.RETRY


def test_what_waited_for_memory_in_vain_is_loaded_as_soon_as_there_is_some(served):
    table = served(size=10, clock=lambda: table.now)
    models = table.start("a", "b")
    with models.lease("a"):
        load = models.load("b")
        table.now += 20.0  # load_wait
        with pytest.raises(engine.Loading):
            load.wait(20)
    table.use("b")
    assert table.loaded() == ["b"]


def test_one_that_stays_is_not_evicted(served):
    table = served(max_loaded=1)
    models = table.ready("a", "b")
    with pytest.raises(engine.Dead, match="max_loaded"):
        models.lease("b")
    assert table.loaded() == ["a"]


def test_a_load_that_can_never_fit_is_refused_and_evicts_none(served):
    table = served(size=30)
    models = table.start(*"ab", table.model("c", size=1000))
    table.use("a")
    with models.lease("b"):
        with pytest.raises(engine.NoRoom, match="even if others are unloaded: it needs"):
            models.load("c").wait(20)
        assert table.loaded() == ["a", "b"]


def test_a_client_that_leaves_ends_its_wait_and_not_the_load(table):
    backend = table.closed("a")
    models = table.start("a")
    left = threading.Event()

    def check():
        if left.is_set():
            raise ConnectionError

    results = in_threads(1, lambda: models.lease("a", check))
    wait_for(lambda: models.status("a").num_waiting == 1)
    left.set()
    assert isinstance(results.join()[0], ConnectionError) and models.status("a").num_waiting == 0
    backend.opening.set()
    table.use("a")
    assert len(table.backends) == 1


def test_more_than_the_queue_holds_are_refused_while_it_loads(table):
    backend = table.closed("a")
    models = table.start(table.model("a", max_pending=2))
    results = in_threads(2, lambda: table.use("a"))
    wait_for(lambda: models.status("a").num_waiting == 2)
    with pytest.raises(engine.Full):
        models.lease("a")
    backend.opening.set()
    results.join()


def test_one_that_an_operator_loads_is_not_loaded_by_requests(table):
    models = table.start(table.model("a", load="manual"))
    with pytest.raises(engine.Unloaded):
        models.lease("a")
    models.load("a").wait(20)
    table.use("a")
    assert models.load("a") is None


def test_an_unload_of_one_that_was_never_loaded_leaves_it_to_the_next_request(table):
    models = table.start("a", "b")
    models.unload("a").wait(20)
    assert models.status("a").state == "unloaded"
    table.use("a")
    assert table.loaded() == ["a"]


def test_requests_are_told_why_an_operators_load_failed(table):
    table.fail("a")
    models = table.start(table.model("a", load="manual"), "b")
    with pytest.raises(engine.ModelError):
        models.load("a").wait(20)
    with pytest.raises(engine.Unloaded, match="no weights"):
        models.lease("a")


def test_a_model_that_cant_load_fails_alone_and_is_tried_again_later(served):
    table = served(clock=lambda: table.now)
    table.fail("b")
    models = table.start("a", "b")
    table.use("a")
    for _ in range(2):  # the second is told without another try
        with pytest.raises(engine.Dead, match="no weights"):
            models.lease("b")
    assert models.status("b").state == "failed" and len(table.backends) == 2
    assert models.status("a").state == "ready"
    table.now += lifecycle.RETRY
    table.use("b")
    assert table.loaded() == ["a", "b"]


def test_a_lost_engine_comes_back_ever_later(served):
    table = served(clock=lambda: table.now)
    models = table.start("a", "b")
    table.use("b")
    for _ in range(2):
        table.lose("b")
        for seconds, expected in ((lifecycle.RETRY - 0.1, "failed"), (0.2, "ready")):
            table.now += seconds
            table.settle()
            assert models.status("b").state == expected
    assert models.wait_until_stopped(0) is None


def test_a_busy_model_makes_room_where_another_has_waited_for_long(served, caplog):
    caplog.set_level("INFO", "switchyard.engine.models.room")
    table = served(size=20, clock=lambda: table.now)
    gate = table.gated("a")
    models = table.start(*"abc")
    first = models.lease("a")
    table.now += 1.0
    second = models.lease("b")  # both at work, a for longer
    stream = first.engine.submit([job("j")])
    gate.wait_until_held()
    first.release()
    found = in_threads(1, lambda: models.lease("c"))
    wait_for(lambda: models.status("c").num_waiting)
    table.now += 1.0
    table.use("a")  # as long as nobody waits for long
    table.now += 5.0  # a quarter of load_wait
    wait_for(lambda: models._entries["a"].yields_to is not None)
    table.wait_for_looks(2)
    again = in_threads(1, lambda: models.lease("a"))
    wait_for(lambda: models.status("a").num_waiting)
    assert models.status("c").state == "loading"
    table.use("b")  # one is enough
    gate.open()
    assert end_of(stream) is engine.Finished
    [third] = found.join()  # is at work to the end
    assert models.status("c").state == "ready" and models.status("b").state == "ready"
    second.release()
    table.now += 1.0
    [lease] = again.join()  # in the place of the one that is idle
    assert lease is not None and models.status("b").state == "unloaded"
    third.release()
    assert caplog.text.count("accepts no requests until it has been unloaded") == 1


def test_a_model_lost_at_the_end_of_its_load_comes_back(served, monkeypatch):
    is_seen = threading.Event()  # the load's thread has seen that the model is loaded
    wait_until_loaded = engine.Engine.wait_until_loaded

    def wait(self, *args):
        found = wait_until_loaded(self, *args)
        if self.config.name == "b":
            is_seen.set()
        return found

    monkeypatch.setattr(engine.Engine, "wait_until_loaded", wait)
    table = served(clock=lambda: table.now)
    backend = table.closed("b")
    models = table.start("a", table.model("b", load="manual"))
    load = models.load("b")
    wait_for(lambda: load.engine is not None)
    with models._changed:  # without which no load ends
        backend.opening.set()
        lost = load.engine
        assert is_seen.wait(20)
        lost.deliver([Stopped(engine.DeviceLost("gone"))])
        lost.close()
    load.wait()
    assert models.status("b").state == "failed"
    table.now += lifecycle.RETRY
    table.settle()
    assert models.status("b").state == "ready"


def test_waits_double_up_to_a_bound(served):
    table = served(clock=lambda: table.now)
    models = table.start("a")
    entry = models._entries["a"]
    waits = []
    for _ in range(9):
        with models._changed:
            models._life.note_loss(entry)
            entry.was_lost = False  # as a load that fails leaves it
        waits.append(entry.retry_at - table.now)
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300, 300]


def test_a_request_that_comes_as_the_first_load_fails_begins_no_other(served):
    table, stopped, go_on, looks = served(), threading.Event(), threading.Event(), []

    def open(config):
        made = table.open(config)
        made.on_stopped(lambda _: (stopped.set(), go_on.wait(20)))  # before the table's own call
        return made

    table.options["open"] = open
    table.fail("a")
    models = table.start(table.model("a", load="start"))
    assert stopped.wait(20)
    leases = in_threads(1, lambda: models.lease("a", lambda: looks.append(1)))
    wait_for(lambda: len(looks) > 1)
    go_on.set()
    assert str(leases.join()[0].engine.error) == "no weights" and len(table.backends) == 1


def test_what_two_wait_for_is_kept_for_the_first(served, caplog):
    caplog.set_level("INFO", "switchyard.engine.models.room")
    table = served(size=10, clock=lambda: table.now)
    models = table.start(*"abc")
    lease = models.lease("a")
    first = models.load("b")
    table.wait_for_looks()
    table.now += 5.0  # a quarter of load_wait
    held = models._entries["a"]
    wait_for(lambda: held.yields_to is not None)
    owner = held.yields_to
    second = models.load("c")
    table.wait_for_looks(2)
    table.now += 6.0
    table.wait_for_looks(5)
    assert held.yields_to is owner
    assert caplog.text.count("accepts no requests until it has been unloaded") == 1
    models.unload("c")
    with pytest.raises(engine.EngineError):
        second.wait(20)
    assert held.yields_to is owner
    lease.release()
    first.wait(20)
    assert table.loaded() == ["b"]
