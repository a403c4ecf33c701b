"""The table of models: names, leases, loads, swaps, unloads, and who waits for them."""

import gc
import threading
import time
import weakref

import pytest

from switchyard import engine
from switchyard.engine.config import ModelConfig
from switchyard.engine.links.thread import EngineThread
from switchyard.engine.messages import Stopped
from switchyard.engine.models import lessor, lifecycle
from tests.engine.reading import take_all
from tests.scripted import Gate, ScriptedBackend, job

GIB = 2**30


class Look:
    """Of a host with so many bytes, of which a model takes what its `max_batch_size` says."""

    def __init__(self, size):
        self.size = size
        self.models = None

    def needed(self, config):
        return {"host": config.max_batch_size}

    def free(self, places):
        loaded = [one for one in self.models.engines if one.standing.is_ready]
        return {"host": self.size - sum(one.config.max_batch_size for one in loaded)}


class Served:
    """A table of scripted models, and what becomes of them."""

    def __init__(self, model_path, size=100, **options):
        self.model_path = model_path
        self.backends = []  # (name, max_batch_size, backend), as they were opened
        self.scripts = {}  # by name: keyword arguments of the next backend
        self.look = Look(size)
        self.now = 1000.0
        self.options = {"look": self.look, "open": self.open, "load_wait": 20.0, **options}
        self.models = None

    def open(self, config):
        script = self.scripts.get(config.name, [])
        made = script.pop(0) if script else ScriptedBackend()
        if isinstance(made, Exception):
            raise made
        self.backends.append((config.name, config.max_batch_size, made))
        return engine.Engine(config, lambda d: EngineThread(config, lambda: made, d))

    def model(self, name, size=10, **more):
        load = more.pop("load", "demand")
        options = {k: more.pop(k) for k in ("idle_timeout", "drain") if k in more}
        config = ModelConfig(self.model_path, name, max_batch_size=size, link="thread", **more)
        return engine.Served(config, load, **options)

    def start(self, *models, **more):
        self.models = self.look.models = engine.Models(models, **self.options, **more)
        self.models.start()
        return self.models

    def loaded(self):
        return [name for name in self.models.names if self.models.status(name).state == "ready"]


@pytest.fixture
def served(model_path, monkeypatch):
    monkeypatch.setattr(lifecycle, "LOOK", 0.01)
    monkeypatch.setattr(lessor, "LOOK", 0.02)
    made = []

    def make(*args, **options):
        made.append(Served(model_path, *args, **options))
        return made[-1]

    yield make
    for one in made:
        for *_, backend in one.backends:
            backend.opening.set()
        if one.models is not None:
            assert one.models.close(timeout=20)


def ends(events):
    return [type(event) for event in events][-1]


def closed():
    """A backend whose load goes on until `opening` is set."""
    backend = ScriptedBackend()
    backend.opening.clear()
    return backend


def wait_for(condition):
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


def in_threads(number, call):
    results = [None] * number

    def run(i):
        try:
            results[i] = call()
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(number)]
    for thread in threads:
        thread.start()
    return threads, results


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


def test_a_busy_model_makes_room_where_another_has_waited_for_long(served):
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
    models.lease("a").release()  # as long as nobody waits for long
    table.now += 5.0  # a quarter of load_wait
    wait_for(lambda: models._entries["a"].yields_to is not None)
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


def test_a_model_lost_at_the_end_of_its_load_comes_back(served):
    table = served(clock=lambda: table.now)
    backend = closed()
    table.scripts["b"] = [backend]
    models = table.start(table.model("a"), table.model("b", load="manual"))
    load = models.load("b")
    wait_for(lambda: load.engine is not None)
    with models._changed:  # without which no load ends
        backend.opening.set()
        lost = load.engine
        wait_for(lambda: lost.standing.is_ready)
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


def test_a_lease_taken_before_a_swap_can_submit_behind_it(served):
    table = served()
    models = table.start(table.model("a", load="start"))
    assert models.wait_until_loaded(20)
    lease = models.lease("a")
    load = models.swap(table.model("a", load="start", max_pending=7))
    load.wait(20)
    assert load.way == "beside"
    stream = lease.engine.submit([job("j")])
    lease.release()
    assert ends(take_all(stream)) is engine.Finished
    with models.lease("a") as new:
        assert new is not lease.engine and new.config.max_pending == 7
    wait_for(lambda: lease.engine.state == "stopped")


def test_without_memory_for_both_the_old_one_ends_first(served):
    table = served(size=15)
    gate = Gate()
    table.scripts["a"] = [ScriptedBackend(gate=gate)]
    models = table.start(table.model("a", load="start"))
    assert models.wait_until_loaded(20)
    with models.lease("a") as old:
        stream = old.submit([job("j")])
    load = models.swap(table.model("a", load="start", max_pending=7))
    wait_for(lambda: load.is_waited_for)
    threads, results = in_threads(3, lambda: models.lease("a"))
    wait_for(lambda: models.status("a").num_waiting == 3)
    assert len(table.backends) == 2 and table.backends[1][2].calls == []
    gate.open()
    load.wait(20)
    assert load.way == "drain"
    for thread in threads:
        thread.join(20)
    assert {lease.engine for lease in results} == {models.get("a")}
    assert models.get("a").config.max_pending == 7
    assert ends(take_all(stream)) is engine.Finished
    for lease in results:
        lease.release()


@pytest.mark.parametrize("size", [100, 15], ids=["beside", "drain"])
def test_a_failed_swap_leaves_what_was_there(served, size):
    table = served(size=size)
    bad = ScriptedBackend(open_error=engine.ModelError("no weights"))
    models = table.start(table.model("a", load="start", max_pending=7))
    assert models.wait_until_loaded(20)
    table.scripts["a"] = [bad]
    load = models.swap(table.model("a", load="start", max_pending=8))
    with pytest.raises(engine.ModelError, match="no weights") as told:
        load.wait(20)
    assert ("loaded again" in str(told.value)) == (size == 15)
    with models.lease("a") as there:
        assert there.config.max_pending == 7
        assert ends(take_all(there.submit([job("j")]))) is engine.Finished
    assert models.status("a").state == "ready"


def test_settings_that_a_model_could_not_be_loaded_with_are_not_its_own(served):
    """Nor does a load that names none try them again."""
    table = served()
    table.scripts["a"] = [ScriptedBackend(), ScriptedBackend(open_error=engine.NoRoom("too large"))]
    models = table.start(table.model("a", load="manual", max_pending=7))
    with pytest.raises(engine.NoRoom, match="too large"):
        models.swap(table.model("a", load="manual", max_pending=8)).wait(20)
    assert models.status("a").state == "failed"
    assert "too large" in str(models.status("a").error)
    models.load("a").wait(20)
    assert models.get("a").config.max_pending == 7 and table.loaded() == ["a"]


@pytest.mark.parametrize("way", [None, "drain"])
def test_a_swap_that_can_never_fit_is_refused_before_the_old_one_ends(served, way):
    table = served(size=15)
    models = table.start(table.model("a", load="start"))
    assert models.wait_until_loaded(20)
    old = models.get("a")
    with pytest.raises(engine.NoRoom, match=r"needs .* once others are gone"):
        models.swap(table.model("a", size=16), way).wait(20)
    assert models.get("a") is old and models.status("a").state == "ready"


def test_two_changes_of_one_name_at_once_are_refused(served):
    table = served()
    models = table.start(table.model("a", load="start"))
    assert models.wait_until_loaded(20)
    backend = closed()
    table.scripts["a"] = [backend]
    load = models.swap(table.model("a"))
    with pytest.raises(engine.LoadUnderWay):
        models.swap(table.model("a"))
    backend.opening.set()
    load.wait(20)


def test_an_unload_ends_behind_the_last_job_and_a_load_that_is_under_way(served):
    table = served()
    gate = Gate()
    waiting = closed()
    table.scripts["a"] = [ScriptedBackend(gate=gate), waiting]
    models = table.start(table.model("a", load="manual"))
    models.load("a").wait(20)
    with models.lease("a") as first:
        stream = first.submit([job("j")])
    unload = models.unload("a")
    assert unload.wait(0.05) is not None
    gate.open()
    unload.wait(20)
    assert ends(take_all(stream)) is engine.Finished
    assert models.status("a").state == "unloaded"
    load = models.load("a")
    wait_for(lambda: waiting.calls)
    models.unload("a")
    waiting.opening.set()
    with pytest.raises(engine.EngineError):
        load.wait(20)
    assert models.status("a").state == "unloaded"


def test_counts_go_on_over_unload_and_swap(served):
    table = served()
    models = table.start(table.model("a"))

    def generate():
        with models.lease("a") as there:
            take_all(there.submit([job("j")]))

    generate()
    wait_for(lambda: models.get("a").standing.stats.totals.new_tokens)
    before = models.get("a").standing.stats.totals.new_tokens
    models.unload("a").wait(20)
    assert models.get("a").standing.stats.totals.new_tokens == before
    models.load("a").wait(20)
    assert models.get("a").standing.stats.totals.new_tokens == before
    models.swap(table.model("a", max_pending=7)).wait(20)
    generate()
    wait_for(lambda: models.get("a").standing.stats.totals.new_tokens == 2 * before)


def test_an_alias_moves_with_the_next_request(served):
    table = served()
    models = table.start(table.model("a"), table.model("b"), aliases={"chat": "a"})
    assert models.get("chat") is models.get("a")
    assert models.point("chat", "b") == "a"
    assert models.get("chat") is models.get("b")
    with pytest.raises(engine.ModelNotFound):
        models.point("chat", "c")


def test_a_server_that_ends_lets_nobody_wait(served):
    table = served()
    backend = closed()
    table.scripts["a"] = [backend]
    models = table.start(table.model("a"))
    threads, results = in_threads(2, lambda: models.lease("a"))
    wait_for(lambda: models.status("a").num_waiting == 2)
    models.drain()
    for thread in threads:
        thread.join(20)
    for lease in results:
        with lease, pytest.raises(engine.Refused):
            lease.engine.submit([job("j")])


def test_models_on_other_gpus_load_at_the_same_time(served):
    table = served()
    first, second, third = closed(), closed(), closed()
    table.scripts = {"a": [first], "b": [second], "c": [third]}
    models = table.start(*(table.model(name) for name in "abc"))
    for name, gpus in (("a", (0,)), ("b", (1,)), ("c", (0, 1))):
        object.__setattr__(models.served(name).config, "gpus", gpus)
    loads = [models.load(name) for name in "abc"]
    wait_for(lambda: first.calls and second.calls)
    assert not third.calls
    first.opening.set()
    loads[0].wait(20)
    assert loads[2].wait(0.05) is not None and not third.calls
    second.opening.set()
    wait_for(lambda: third.calls)
    third.opening.set()
    loads[2].wait(20)


@pytest.mark.parametrize(("first", "second"), [((), (0,)), ((1,), ()), ((), ())])
def test_a_model_of_all_gpus_loads_at_no_other_s_time(served, first, second):
    table = served()
    backends = closed(), closed()
    table.scripts = {name: [backend] for name, backend in zip("ab", backends, strict=True)}
    models = table.start(*(table.model(name) for name in "ab"))
    for name, gpus in (("a", first), ("b", second)):
        object.__setattr__(models.served(name).config, "gpus", gpus)
    loads = [models.load("a")]
    wait_for(lambda: backends[0].calls)
    loads.append(models.load("b"))
    assert loads[1].wait(0.05) is not None and not backends[1].calls
    for load, backend in zip(loads, backends, strict=True):
        backend.opening.set()
        load.wait(20)


def test_why_a_model_could_not_be_loaded_is_logged_once(served, caplog):
    table = served()
    table.scripts["a"] = [ScriptedBackend(open_error=engine.ModelError("no weights"))]
    models = table.start(table.model("a"))
    with pytest.raises(engine.ModelError, match="no weights"):
        models.load("a").wait(20)
    assert caplog.text.count("no weights") == 1


def test_the_models_of_a_server_share_the_time_to_wait_for_them(served, monkeypatch):
    table, given = served(), []
    models = table.start(*(table.model(name, load="start") for name in "ab"))
    assert models.wait_until_loaded(20)

    def wait(model, timeout):
        given.append(timeout)
        return True

    monkeypatch.setattr(engine.Engine, "wait_until_loaded", wait)
    assert models.wait_until_loaded(20)
    assert 20 >= given[0] > given[1]


def error_of(load):
    wait_for(lambda: load.is_done)
    return load.error


def test_what_could_not_be_loaded_leaves_no_engine_behind(served):
    table = served()
    faults = [ScriptedBackend(open_error=ValueError(f"fault {i}")) for i in range(3)]
    table.scripts["a"] = faults
    models = table.start(table.model("a"))
    kept = []
    for i in range(3):
        assert f"fault {i}" in str(error_of(models.load("a")))
        kept.append(weakref.ref(models.get("a")))
    wait_for(lambda: gc.collect() >= 0 and [one() is None for one in kept] == [True, True, False])
