"""Engines on three machines by Ray: each failure, an update, scaling. Every token is checked.

The tests run in order over one cluster, and each leaves it with two ready engines. No engine is on
the head's machine.
"""

import time

import pytest

from tests.cluster.machines import MODEL, NET
from tests.cluster.outcome import nothing_lost, pids, some_lost
from tests.cluster.test_engine_process import is_there
from tests.conftest import wait_for

pytestmark = pytest.mark.cluster


def test_apply_twice_is_as_once(field):
    before = field.engines()
    first, *_, last = field.apply().splitlines()  # between them Serve may look again
    assert (first, last) == ("the engines match the settings", "done")
    assert {one[:2] for one in field.engines()} == {one[:2] for one in before}
    status = field.machines.status()
    assert [one["address"] for one in status["nodes"] if one["is_head"]] == [f"{NET}.1"]
    assert status["models"][MODEL]["is_done"]
    assert {one["at"] for one in status["models"][MODEL]["engines"]} == {one[0] for one in before}


@pytest.mark.parametrize("what", ["engine", "supervisor"])
def test_a_killed_process_loses_its_streams_alone_and_is_replaced(field, what):
    with field.load() as result:
        pid, _, jobs = field.an_engine()
        began = time.time()
        field.kill(pid if what == "engine" else field.supervisor_of(pid))
        wait_for(lambda: not is_there(pid))
        field.wait_for_engines(2, [pid])
    some_lost(result, began, 5, jobs)


def test_more_engines_and_fewer_touch_no_other_and_lose_nothing(field):
    before = {one[1] for one in field.engines()}
    with field.load(160, 200, 25.0) as result:
        field.machines.settings(3)
        assert f"{MODEL}: from 2 to 3 engines" in field.apply()
        three = {one[1] for one in field.wait_for_engines(3)}
        field.machines.settings(2)
        assert f"{MODEL}: from 3 to 2 engines" in field.apply()
        two = {one[1] for one in field.wait_for_engines(2)}
    nothing_lost(result)
    assert before < three and two < three


def test_an_update_replaces_all_engines_and_loses_nothing(field):
    before = {one[1] for one in field.engines()}
    with field.load(160, 200, 25.0) as result:
        field.machines.settings(2, more="max_priority = 3")
        told = field.apply()
        assert "replaces 2 engines, as their version has changed" in told
        field.wait_for_engines(2, before)
    nothing_lost(result)


def test_more_than_there_is_room_for_starts_what_fits(field):
    field.machines.settings(5, more="max_priority = 3")
    told = field.apply(status=3)
    assert "waits for 1 place: 0 of 4 are free" in told
    assert field.machines.status()["models"][MODEL]["waits"] == "waits for 1 place: 0 of 4 are free"
    field.scale(2, more="max_priority = 3")


def test_without_its_head_a_cluster_serves_and_heals_once_it_is_back(field):
    before = {one[1] for one in field.engines()}
    with field.load(120, 200, 10.0) as result:
        field.kill_state()
    nothing_lost(result)
    field.wait_for_nodes(3)
    assert {one[1] for one in field.engines()} == before
    pid, *_ = field.an_engine()
    field.kill(pid)
    field.wait_for_engines(2, [pid])


def test_the_plug_of_a_machine_is_pulled(field):
    with field.load(60, 300) as result:
        _, machine, _ = field.an_engine()
        gone = field.on(machine)
        began = time.time()
        field.machines.kill_all(machine)
        field.wait_for_engines(2, pids(gone))  # where there is room
    jobs = sum(one[3] for one in gone)
    some_lost(result, began, 2.0 + 5, jobs, len(gone) == 2)
    field.start_node(machine)
    field.wait_for_nodes(3)


def test_a_cut_cable(field):
    with field.load(60, 300) as result:
        _, machine, _ = field.an_engine()
        gone = field.on(machine)
        began = time.time()
        field.machines.cut(machine)
        try:
            field.wait_for_engines(2, pids(gone))
        finally:
            field.machines.cut(machine, False)
    jobs = sum(one[3] for one in gone)
    some_lost(result, began, 2.0 + 5, jobs, len(gone) == 2)
    field.wait_for_nodes(3)
    field.wait_for_engines(2)
    wait_for(lambda: not any(map(is_there, pids(gone))))


def test_another_key_is_named_and_changes_nothing(field):
    machines = field.machines
    settings = machines.folder(1) / "switchyard.toml"
    other = machines.root / "other"
    other.write_text("x" * 64)
    other.chmod(0o600)
    wrong = machines.folder(1) / "wrong.toml"
    wrong.write_text(settings.read_text().replace(str(machines.key), str(other)))
    done = machines.switchyard(
        1, "cluster", "status", text=True, environment={"SWITCHYARD_CONFIG": str(wrong)}
    )
    told, _ = done.communicate(timeout=120)
    assert done.returncode == 1, told
    assert told.splitlines()[-1] == (
        "switchyard: the head has a different key: compare engine_key_file"
    ), told
