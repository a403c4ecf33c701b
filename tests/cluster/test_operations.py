"""What operators do to a cluster, and what befalls its head and its server. Goes on with the
cluster of test_machines, and ends it.
"""

import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from switchyard.engine.model.contents import fingerprint
from tests.cluster.field import HEAD, NODE
from tests.cluster.machines import MODEL, NET
from tests.cluster.outcome import nothing_lost, pids, some_lost
from tests.cluster.test_engine_process import is_there
from tests.conftest import DEMO, wait_for

pytestmark = pytest.mark.cluster


def seeing(folder):
    """A command that runs another one, which sees this folder in place of the model's."""
    return "unshare", "-m", "sh", "-c", f'mount --bind {folder} {DEMO} && exec "$@"', "sh"


def test_engines_have_the_priority_of_their_machines_command(field):
    [own] = field.machines.pids(1, HEAD)
    for pid in pids(field.engines()):
        assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, own)


def test_a_machine_is_drained_and_loses_nothing(field):
    with field.load(160, 200, 25.0) as result:
        _, machine, _ = field.an_engine()
        gone = field.on(machine)
        code, told = field.machines.run(machine, "cluster", "node", "--drain", timeout=120)
        assert code == 0, (told, field.logs())
        field.wait_for_engines(2, pids(gone))
        assert not field.on(machine)
    nothing_lost(result)
    left = ", ".join(sorted(at for at, *_ in gone))  # one, or both
    assert f"{left}: waiting for replacements" in told
    assert f"{NET}.{machine} has no engine, and gets none until" in told.splitlines()[-1]
    field.restart_node(machine)


def test_the_earlier_of_two_applies_gives_way(field):
    """The earlier one is frozen meanwhile: it wants more than there is, and would give up."""
    before = {one[:2] for one in field.scale(2)}  # the settings of test_machines may differ
    field.machines.settings(5)
    earlier = field.machines.switchyard(1, "cluster", "apply", text=True)
    assert any("running" in line for line in earlier.stdout)  # it has declared them
    field.kill(earlier.pid, signal.SIGSTOP)
    field.machines.settings(2)
    field.apply()
    field.kill(earlier.pid, signal.SIGCONT)
    told, _ = earlier.communicate(timeout=60)
    assert earlier.returncode == 3, told
    assert told.splitlines()[-1] == "a newer apply has begun and takes precedence"
    assert {one[:2] for one in field.wait_for_engines(2)} == before


def test_a_machine_whose_model_is_emptied_keeps_its_engine_and_starts_no_other(field):
    """Machine 3 has its own copy. `apply` also runs where the model's directory is empty."""
    own, nothing = field.machines.root / "own-model", field.machines.root / "nothing"
    shutil.copytree(DEMO, own)
    nothing.mkdir()
    gone = pids(field.on(3))
    field.stop_node(3)
    field.wait_for_engines(2, gone)  # on machine 2
    field.start_node(3, *seeing(own))
    field.wait_for_nodes(3)
    three = {one[:2] for one in field.scale(3)}
    [(at, pid, *_)] = field.on(3)
    for path in own.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    field.check_serving()
    assert {one[:2] for one in field.wait_for_engines(3)} == three
    field.kill(pid)
    fault = f"{NET}.3: {DEMO} has no model, but apply ran with {fingerprint(Path(DEMO))}"
    wait_for(lambda: fault in " ".join(field.machines.status()["models"][MODEL]["faults"]), 60)
    two = {one[:2] for one in field.wait_for_engines(2)}
    field.check_serving()
    assert two == three - {(at, pid)}
    shutil.copytree(DEMO, own, dirs_exist_ok=True)
    apply = [sys.executable, "-m", "switchyard", "cluster", "apply"]
    done = field.machines.inside(1, *seeing(nothing), *apply, text=True)
    told, _ = done.communicate(timeout=120)
    assert done.returncode == 0, (told, field.logs())
    assert two < {one[:2] for one in field.wait_for_engines(3)}
    field.restart_node(3)
    field.scale(2)


def test_more_load_brings_engines_and_less_ends_them(field):
    """In the environment of `apply`, a reduction takes 5 seconds of less load in place of 300."""
    field.machines.settings("{ min = 1, max = 3, jobs = 10 }")
    field.apply()
    field.wait_for_engines(1)
    with field.load(120, 1500, 30.0) as result:
        field.wait_for_engines(3)
    nothing_lost(result)
    with field.load(10, 200, 20.0) as result:
        field.wait_for_engines(1)
    nothing_lost(result)
    field.scale(2)


def test_a_head_that_was_killed_is_followed_by_another(field):
    """`cluster head` alone: its Ray ends with it, and the engines stay."""
    before = {one[:2] for one in field.wait_for_engines(2)}
    with field.load(120, 200, 10.0) as result:
        [head] = field.machines.pids(1, HEAD)
        field.kill(head)
        wait_for(lambda: not field.machines.pids(1, "gcs_server"))
        wait_for(lambda: not field.machines.pids(1, "switchyard.cluster.follower"))
        field.start_head("--engines", "1")
        field.wait_for_nodes(3)
    nothing_lost(result)
    assert {one[:2] for one in field.wait_for_engines(2)} == before


def test_a_head_with_an_engine_takes_it_along(field):
    """Goes on with the head of the test before, which may have an engine."""
    field.machines.settings(5)
    assert "the head may run engines, which end when the head ends" in field.apply()
    five = field.wait_for_engines(5)
    [own] = field.on(1)
    with field.load(100, 300) as result:
        [jobs] = [one[3] for one in field.on(1)]
        began = time.time()
        field.kill_state()
        wait_for(lambda: not is_there(own[1]))
        field.wait_for_engines(5, [own[1]], 240)
    some_lost(result, began, 2.0 + 5, jobs)
    assert set(pids(five)) - {own[1]} < set(pids(field.engines()))
    field.scale(2)


def test_down_ends_all_and_leaves_the_machines(field):
    before = pids(field.engines())
    code, told = field.machines.run(1, "cluster", "down")
    assert code == 0 and f"ended: {MODEL}" in told
    assert not any(map(is_there, before))
    assert len(field.machines.status()["nodes"]) == 3


def test_an_apply_tries_again_what_had_failed_on_all_machines(field):
    """No machine has the settings of `apply`, until they are copied there."""
    machines = field.machines
    other, mine = machines.folder(1) / "other.toml", machines.folder(1) / "switchyard.toml"
    other.write_text("max_priority = 4\n" + mine.read_text())
    environment = {"SWITCHYARD_CONFIG": str(other)}
    done = machines.switchyard(1, "cluster", "apply", text=True, environment=environment)
    told, _ = done.communicate(timeout=240)
    assert done.returncode == 1 and "copy the settings file" in told.splitlines()[-1], told
    machines.settings(2, more="max_priority = 4")
    field.apply()
    field.wait_for_engines(2)
    assert machines.run(1, "cluster", "down")[0] == 0


def test_a_signal_ends_a_machine_and_leaves_no_process(field):
    for process in field.machines.foreground:
        process.send_signal(signal.SIGTERM)
    for process in field.machines.foreground:
        assert process.wait(60) in (0, -signal.SIGKILL)
    for one in (1, 2, 3):
        for words in (HEAD, NODE, "switchyard.cluster.follower", "raylet", "gcs_server"):
            assert not field.machines.pids(one, words)
