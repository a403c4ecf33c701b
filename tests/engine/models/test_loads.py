"""The table of models: loads on demand, leases, evictions, waits."""

import threading

import pytest

from switchyard import engine
from switchyard.engine.messages import Stopped
from switchyard.engine.models import lifecycle
from tests.engine.models.asked import closed, ends, in_threads, wait_for
from tests.engine.reading import take_all
from tests.scripted import Gate, ScriptedBackend, job


def test_eight_requests_at_once_load_an_unloaded_model_once(served):
    table = served()
    backend = closed()
    table.scripts["b"] = [backend]
    models = table.start(table.model("a"), table.model("b"))
    assert models.status("b").state == "unloaded"
    threads, leases = in_threads(8, lambda: models.lease("b"))
    wait_for(lambda: models.status("b").num_waiting == 8)
    assert models.status("b").state == "loading"
    backend.opening.set()
    for thread in threads:
        thread.join(20)
    assert len({lease.engine for lease in leases}) == 1
    assert [name for name, *_ in table.backends] == ["a", "b"]
    for lease in leases:
        lease.release()
    assert models.status("b").num_leases == 0 and table.loaded() == ["b"]


def test_the_least_recently_used_goes_and_never_one_in_use(served):
    table = served(size=20)
    models = table.start(*(table.model(name) for name in "abc"))
    models.lease("a").release()
    models.lease("b").release()
    models.lease("a").release()
    models.lease("c").release()  # for b, which was not used for longer
    assert table.loaded() == ["a", "c"]
    with models.lease("a"):
        models.lease("b").release()
        assert table.loaded() == ["a", "b"]


def test_an_engine_that_is_lost_amid_the_end_of_all_is_told(served):
    table = served()
    models = table.start(table.model("a"), table.model("b"))
    models.lease("a").release()
    models.drain()
    lost = models.get("a")
    lost.deliver([Stopped(engine.DeviceLost("the device is lost"))])
    assert models.wait_until_stopped(0) is lost


def test_a_job_at_work_keeps_its_model(served):
    table = served(size=20)
    gate = Gate()
    table.scripts["a"] = [ScriptedBackend(gate=gate)]
    models = table.start(*(table.model(name) for name in "abc"))
    with models.lease("a") as first:
        stream = first.submit([job("j")])
    models.lease("b").release()
    models.lease("c").release()
    assert table.loaded() == ["a", "c"]
    gate.open()
    assert ends(take_all(stream)) is engine.Finished


def test_a_load_waits_until_others_are_done_with_its_memory(served):
    table = served(size=10)
    models = table.start(table.model("a"), table.model("b"))
    lease = models.lease("a")
    threads, results = in_threads(1, lambda: models.lease("b"))
    wait_for(lambda: models.status("b").num_waiting == 1)
    threads[0].join(0.1)
    assert table.loaded() == ["a"]
    lease.release()
    threads[0].join(20)
    results[0].release()
    assert table.loaded() == ["b"]


def test_it_says_in_the_end_that_others_use_the_memory(served):
    table = served(size=10, load_wait=0.1)
    models = table.start(table.model("a"), table.model("b"))
    with models.lease("a"), pytest.raises(engine.Loading) as told:
        models.lease("b")
    assert told.value.retry_after == lifecycle.RETRY


def test_an_operator_is_told_what_a_load_has_waited_for(served):
    table = served(max_loaded=1, load_wait=0.1)
    models = table.start(table.model("a"), table.model("b"))
    with (
        models.lease("a"),
        pytest.raises(engine.Loading, match="a place within max_loaded, that busy models"),
    ):
        models.load("b").wait(20)
    assert table.loaded() == ["a"]


def test_a_request_is_told_what_its_load_has_waited_for(served):
    table = served(size=10, clock=lambda: table.now)
    models = table.start(table.model("a"), table.model("b"))
    with models.lease("a"):
        num_looks = table.look.num_looks
        threads, results = in_threads(1, lambda: models.lease("b"))
        wait_for(lambda: table.look.num_looks > num_looks)
        table.now += 20.0  # load_wait
        threads[0].join(20)
    assert isinstance(results[0], engine.Loading) and "waits for memory" in str(results[0])


def test_what_waited_for_memory_in_vain_is_loaded_as_soon_as_there_is_some(served):
    table = served(size=10, clock=lambda: table.now)
    models = table.start(table.model("a"), table.model("b"))
    with models.lease("a"):
        load = models.load("b")
        table.now += 20.0  # load_wait
        with pytest.raises(engine.Loading):
            load.wait(20)
    models.lease("b").release()
    assert table.loaded() == ["b"]


def test_max_loaded_counts_whatever_the_memory(served):
    table = served(max_loaded=1)
    models = table.start(table.model("a"), table.model("b"))
    models.lease("a").release()
    models.lease("b").release()
    assert table.loaded() == ["b"]


def test_one_that_stays_is_not_evicted(served):
    table = served(max_loaded=1)
    models = table.start(table.model("a", load="start"), table.model("b"))
    assert models.wait_until_loaded(20)
    with pytest.raises(engine.Dead, match="max_loaded"):
        models.lease("b")
    assert table.loaded() == ["a"]


def test_a_load_that_can_never_fit_is_refused_and_evicts_none(served):
    table = served(size=30)
    models = table.start(*(table.model(name) for name in "ab"), table.model("c", size=1000))
    models.lease("a").release()
    with models.lease("b"):
        with pytest.raises(engine.NoRoom, match=r"needs .* once others are gone"):
            models.load("c").wait(20)
        assert table.loaded() == ["a", "b"]


def test_a_client_that_leaves_ends_its_wait_and_not_the_load(served):
    table = served()
    backend = closed()
    table.scripts["a"] = [backend]
    models = table.start(table.model("a"))
    left = threading.Event()

    def check():
        if left.is_set():
            raise ConnectionError

    threads, results = in_threads(1, lambda: models.lease("a", check))
    wait_for(lambda: models.status("a").num_waiting == 1)
    left.set()
    threads[0].join(20)
    assert isinstance(results[0], ConnectionError) and models.status("a").num_waiting == 0
    backend.opening.set()
    models.lease("a").release()
    assert len(table.backends) == 1


def test_more_than_the_queue_holds_are_refused_while_it_loads(served):
    table = served()
    backend = closed()
    table.scripts["a"] = [backend]
    models = table.start(table.model("a", max_pending=2))
    threads, _ = in_threads(2, lambda: models.lease("a").release())
    wait_for(lambda: models.status("a").num_waiting == 2)
    with pytest.raises(engine.Full):
        models.lease("a")
    backend.opening.set()
    for thread in threads:
        thread.join(20)


def test_one_that_an_operator_loads_is_not_loaded_by_requests(served):
    table = served()
    models = table.start(table.model("a", load="manual"))
    with pytest.raises(engine.Unloaded):
        models.lease("a")
    models.load("a").wait(20)
    models.lease("a").release()
    assert models.load("a") is None


def test_an_unload_of_one_that_was_never_loaded_leaves_it_to_the_next_request(served):
    table = served()
    models = table.start(table.model("a"), table.model("b"))
    models.unload("a").wait(20)
    assert models.status("a").state == "unloaded"
    models.lease("a").release()
    assert table.loaded() == ["a"]


def test_requests_are_told_why_an_operators_load_failed(served):
    table = served()
    table.scripts["a"] = [ScriptedBackend(open_error=engine.ModelError("no weights"))]
    models = table.start(table.model("a", load="manual"), table.model("b"))
    with pytest.raises(engine.ModelError):
        models.load("a").wait(20)
    with pytest.raises(engine.Unloaded, match="no weights"):
        models.lease("a")


def test_a_model_that_cant_load_fails_alone_and_is_tried_again_later(served):
    table = served(clock=lambda: table.now)
    bad = ScriptedBackend(open_error=engine.ModelError("no weights"))
    table.scripts["b"] = [bad, ScriptedBackend()]
    models = table.start(table.model("a"), table.model("b"))
    models.lease("a").release()
    for _ in range(2):  # the second is told without another try
        with pytest.raises(engine.Dead, match="no weights"):
            models.lease("b")
    assert models.status("b").state == "failed" and len(table.backends) == 2
    assert models.status("a").state == "ready"
    table.now += lifecycle.RETRY
    models.lease("b").release()
    assert table.loaded() == ["a", "b"]


def test_a_lost_engine_comes_back_ever_later(served):
    table = served(clock=lambda: table.now)
    models = table.start(table.model("a"), table.model("b"))
    models.lease("b").release()
    for wait in (lifecycle.RETRY, lifecycle.RETRY):
        lost = models.get("b")
        lost.deliver([Stopped(engine.DeviceLost("gone"))])
        lost.close()
        wait_for(lambda: models.status("b").state == "failed")
        table.now += wait - 0.1
        models._life.tick()
        assert models.status("b").state == "failed"
        table.now += 0.2
        with models._changed:
            models._life.tick()
        wait_for(lambda: models.status("b").state == "ready")
    assert models.wait_until_stopped(0) is None


def test_a_busy_model_makes_room_where_another_has_waited_for_long(served, caplog):
    caplog.set_level("INFO", "switchyard.engine.models.room")
    table = served(size=20, clock=lambda: table.now)
    gate = Gate()
    table.scripts["a"] = [ScriptedBackend(gate=gate)]
    models = table.start(*(table.model(name) for name in "abc"))
    first = models.lease("a")
    table.now += 1.0
    second = models.lease("b")  # both at work, a for longer
    stream = first.engine.submit([job("j")])
    gate.wait_until_held()
    first.release()
    [third], found = in_threads(1, lambda: models.lease("c"))
    wait_for(lambda: models.status("c").num_waiting)
    table.now += 1.0
    models.lease("a").release()  # as long as nobody waits for long
    table.now += 5.0  # a quarter of load_wait
    wait_for(lambda: models._entries["a"].yields_to is not None)
    num_looks = table.look.num_looks
    wait_for(lambda: table.look.num_looks > num_looks + 1)
    [later], again = in_threads(1, lambda: models.lease("a"))
    wait_for(lambda: models.status("a").num_waiting)
    assert models.status("c").state == "loading"
    models.lease("b").release()  # one is enough
    gate.open()
    assert ends(take_all(stream)) is engine.Finished
    third.join(20)
    assert models.status("c").state == "ready" and models.status("b").state == "ready"
    found[0].release()
    second.release()
    table.now += 1.0
    later.join(20)  # in the place of the one that is idle
    assert again[0] is not None and models.status("b").state == "unloaded"
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
    backend = closed()
    table.scripts["b"] = [backend]
    models = table.start(table.model("a"), table.model("b", load="manual"))
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
    with models._changed:
        models._life.tick()
    wait_for(lambda: models.status("b").state == "ready")


def test_waits_double_up_to_a_bound(served):
    table = served(clock=lambda: table.now)
    models = table.start(table.model("a"))
    entry = models._entries["a"]
    waits = []
    for _ in range(9):
        with models._changed:
            models._life.note_loss(entry)
            entry.was_lost = False  # as a load that fails leaves it
        waits.append(entry.retry_at - table.now)
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300, 300]


def test_an_idle_model_is_unloaded_after_its_time_and_not_before(served):
    table = served(clock=lambda: table.now)
    models = table.start(table.model("a", idle_timeout=60.0))
    models.lease("a").release()
    for seconds, expected in ((0, "ready"), (59, "ready"), (2, "unloaded")):
        table.now += seconds
        with models._changed:
            models._life.tick()
        wait_for(lambda: models._entries["a"].load is None)
        assert models.status("a").state == expected
    models.lease("a").release()  # and comes back
    assert table.loaded() == ["a"]


def test_a_request_that_comes_as_the_first_load_fails_begins_no_other(served):
    table, stopped, go_on, looks = served(), threading.Event(), threading.Event(), []

    def open(config):
        made = table.open(config)
        made.on_stopped(lambda _: (stopped.set(), go_on.wait(20)))  # before the table's own call
        return made

    table.options["open"] = open
    table.scripts["a"] = [ScriptedBackend(open_error=engine.ModelError("no weights"))]
    models = table.start(table.model("a", load="start"))
    assert stopped.wait(20)
    threads, leases = in_threads(1, lambda: models.lease("a", lambda: looks.append(1)))
    wait_for(lambda: len(looks) > 1)
    go_on.set()
    threads[0].join(20)
    assert str(leases[0].engine.error) == "no weights" and len(table.backends) == 1


def test_what_two_wait_for_is_kept_for_the_first(served, caplog):
    caplog.set_level("INFO", "switchyard.engine.models.room")
    table = served(size=10, clock=lambda: table.now)
    models = table.start(*(table.model(name) for name in "abc"))
    lease = models.lease("a")
    first = models.load("b")
    looks = table.look.num_looks
    wait_for(lambda: table.look.num_looks > looks)
    table.now += 5.0  # a quarter of load_wait
    held = models._entries["a"]
    wait_for(lambda: held.yields_to is not None)
    owner = held.yields_to
    second = models.load("c")
    looks = table.look.num_looks
    wait_for(lambda: table.look.num_looks > looks + 1)
    table.now += 6.0
    looks = table.look.num_looks
    wait_for(lambda: table.look.num_looks > looks + 4)
    assert held.yields_to is owner
    assert caplog.text.count("accepts no requests until it has been unloaded") == 1
    models.unload("c")
    with pytest.raises(engine.EngineError):
        second.wait(20)
    assert held.yields_to is owner
    lease.release()
    first.wait(20)
    assert table.loaded() == ["b"]
