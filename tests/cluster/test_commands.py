"""`switchyard cluster` without Ray: what is declared, what is refused, how it ends."""

import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import types

import pytest
from click.testing import CliRunner

from switchyard.cluster import applying, commands, ray_client
from switchyard.cluster.declaration import ByJobs, declaration
from switchyard.cluster.follower import write
from switchyard.cluster.ray_client import explain
from switchyard.cluster.report import lines_of, report
from switchyard.cluster.supervisor import loads_in
from switchyard.cluster.wanted import There, Wanted

WANTED = Wanted("llama", 3, 3, None, 1, ("big",), "v1", 30.0)


def state(replicas, version="v1", state="RUNNING", unplaced=0, message=""):
    return {
        **{"state": state, "message": message, "target": 3, "replicas": replicas},
        **{"unplaced": unplaced, "config": {"version": version}},
    }


DONE = {"llama": state({"RUNNING": 3})}
WAITS = {"llama": state({"RUNNING": 2, "STARTING": 1}, unplaced=1)}
FAILED = {"llama": state({}, state="DEPLOY_FAILED", message="10.0.0.2: no model")}


class Fake:
    """A cluster whose states follow each other; the last stays."""

    def __init__(self, *states, is_latest=True):
        self._states, self._is_latest = list(states), is_latest
        self.declared, self.deleted, self.failing = [], [], []
        self.is_roomy = False

    def declare(self, wanted):
        self.declared.append(declaration(wanted))
        return "mine"

    def is_latest(self, name):
        return self._is_latest

    def states(self):
        return self._states.pop(0) if len(self._states) > 1 else self._states[0]

    def there(self):
        return {name: There(one["target"], "v1") for name, one in self.states().items()}

    def nodes(self):
        names = ("address", "gpus", "engines", "label", "is_head", "is_draining")
        rows = ("10.0.0.1", 0, 0, "", True, False), ("10.0.0.2", 2, 1, "big", False, True)
        return [dict(zip(names, row, strict=True)) for row in rows]

    def engines(self, name, is_whole=True):
        about = {"pid": 7, "state": "ready, 3 jobs, 0 wanted", "version": "v1", "since": 0.0}
        return [{"at": "10.0.0.2:7000", **about}]

    def faults(self, wanted):
        return self.failing

    def has_room(self, wanted):
        return self.is_roomy

    def lack(self, wanted):
        return "waits for 1 GPU: 0 of 3 are free"

    def delete(self, names):
        self.deleted += names

    def close(self):
        pass


@pytest.fixture(autouse=True)
def no_waits(monkeypatch):
    monkeypatch.setattr(applying, "PERIOD", 0.0)
    monkeypatch.setattr(applying, "UNPLACED", 0.0)


@pytest.mark.parametrize(
    ("cluster", "status", "last"),
    [
        (Fake({}, {"llama": state({"STARTING": 3})}, DONE), 0, "done"),
        (Fake(WAITS), 3, "llama: waits for 1 GPU: 0 of 3 are free"),
        (Fake(DONE, is_latest=False), 3, "a newer apply has begun and takes precedence"),
        (Fake(FAILED), 1, "llama: 10.0.0.2: no model"),
        (  # the old version still runs, then an old model ends
            Fake(
                {"llama": state({"RUNNING": 3}, "v0")},
                {"llama": state({"RUNNING": 3, "STOPPING": 1}), "old": state({"STOPPING": 1})},
                *[{**DONE, "old": state({"STOPPING": 1})}] * 2,
                DONE,
            ),
            0,
            "done",
        ),
    ],
)
def test_apply_ends_when_all_is_done_or_cannot_be(cluster, status, last):
    told = []
    assert applying.apply(cluster, [WANTED], told.append) == status
    assert told[-1] == last and len(cluster.declared) == 1
    assert len(cluster._states) == 1, "it did not wait for the last state"


def test_what_serve_gets_keeps_its_args_when_only_the_number_changes():
    def application(**more):
        [one] = declaration([dataclasses.replace(WANTED, **more)])["applications"]
        return one

    first, more = application(), application(least=5, most=5)
    assert first["args"] == more["args"] != application(version="v2")["args"]
    [engines] = first["deployments"]
    assert engines["num_replicas"] == 3 and engines["graceful_shutdown_timeout_s"] > 30
    needs = {"num_cpus": 0, "num_gpus": 1, "label_selector": {"switchyard": "in(big)"}}
    assert engines["ray_actor_options"] == needs
    [engines] = application(gpus_each=0, nodes=(), most=8, jobs=24)["deployments"]
    assert engines["ray_actor_options"] == {"num_cpus": 0, "resources": {"engine": 1}}
    scaling = engines["autoscaling_config"]
    assert (scaling["min_replicas"], scaling["max_replicas"]) == (3, 8)
    assert scaling["policy"]["policy_kwargs"] == {"jobs": 24}


@pytest.mark.parametrize(
    ("loads", "number"),
    [
        ({}, 2),
        ({"jobs": {"a": 0, "b": 0}, "wanted": {"a": 0, "b": 0}}, 0),
        ({"jobs": {"a": 24, "b": 24}, "wanted": {"a": 0, "b": 0}}, 2),
        ({"jobs": {"a": 24, "b": 24}, "wanted": {"a": 25, "b": 25}}, 4),
    ],
)
def test_engines_by_jobs_count_a_waiting_job_once(loads, number):
    context = types.SimpleNamespace(aggregated_metrics=loads, target_num_replicas=2)
    assert ByJobs(24)(context) == (number, {})


def test_loads_are_read_from_the_status_that_an_engine_reports():
    assert loads_in("ready, 3 jobs, 12 wanted") == {"jobs": 3, "wanted": 12}
    assert loads_in("loading") == {}


def test_a_file_of_engines_is_replaced_at_once_and_never_by_nothing(tmp_path):
    path = tmp_path / "llama.at"
    assert write(str(path), ["b:1", "a:1"])
    assert not write(str(path), []) and not write(str(path), ["a:1", "b:1"])
    assert path.read_text() == "a:1\nb:1\n" and os.listdir(tmp_path) == ["llama.at"]
    path.write_text("")  # by somebody else
    assert write(str(path), ["a:1", "b:1"]) and path.read_text() == "a:1\nb:1\n"


def test_a_follower_that_gets_no_answer_says_so_and_ends():
    code = (
        "import time; from switchyard.cluster import follower;"
        " follower.STUCK, follower.LOOK = 1.0, 0.01; alarm = follower.Alarm();"
        " [(alarm.sign(), time.sleep(0.01)) for _ in range(150)]; print('alive', flush=True);"
        " time.sleep(60)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout) == (1, "alive\n"), done.stderr
    assert done.stderr == "switchyard: the head doesn't respond; the engines stay as they are\n"


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("RpcError: ... UNAUTHENTICATED: Invalid token", "the head has a different key: compare"),
        (
            "Version mismatch: The cluster was started with:\n    Ray: 2.60.0\n    Python: 3.12.1\n"
            "This process was started with:\n    Ray: 2.60.0\n    Python: 3.11.7",
            "the head has different versions of Ray or Python: Ray: 2.60.0, Python: 3.12.1,"
            " Ray: 2.60.0, Python: 3.11.7",
        ),
        ("something else", ""),
    ],
)
def test_faults_of_ray_are_translated(text, meaning):
    assert explain(text).startswith(meaning) and bool(explain(text)) == bool(meaning)


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Calls a command on a machine with 10.0.0.2, whose Ray is 2.60.0."""
    key = tmp_path / "key"
    key.write_text("k" * 64)
    key.chmod(0o600)
    (tmp_path / "switchyard.toml").write_text(
        f'link = "socket"\nengine_key_file = "{key}"\n[[models]]\nname = "llama"\nmodel = "/m"\n'
        f'at = ["cluster"]\nengines = 3\n[cluster]\nhead = "10.0.0.1"\nnetwork = "10.0.0.0/24"\n'
        f'run_dir = "{tmp_path}/run"\nstate_dir = "/s"\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands, "addresses_here", lambda: ["127.0.0.1", "10.0.0.2"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.60.0")

    def call(*arguments):
        done = CliRunner().invoke(commands.cluster, arguments)
        return done.exit_code, done.output.strip()

    call.key = key
    return call


@pytest.mark.parametrize("command", ["node", "apply", "status", "down", "head"])
def test_without_ray_or_with_another_all_commands_say_what_to_install(call, monkeypatch, command):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.61.0")
    cure = "pip install 'switchyard[cluster]'"
    assert call(command) == (1, f"switchyard: ray 2.61.0 is installed, but 2.60 is needed: {cure}")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert call(command) == (1, f"switchyard: ray is not installed: {cure}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("head",), "cluster.head is 10.0.0.1, but this machine is 10.0.0.2"),
        (("head", "--address", "10.9.9.9"), "--address 10.9.9.9: this machine has 127.0.0.1, 10"),
        (("node", "--engines", "-1"), "--engines -1: must be from 0 to 64"),
        (("node", "--label", "A B"), "--label: 'A B' must be a label"),
        (("node", "--engines", "65"), "--engines 65: must be from 0 to 64"),
        (("node", "--drain", "--address", "10.0.0.1"), "--address 10.0.0.1: this machine has"),
    ],
)
def test_a_machine_refuses_to_start_in_one_line(call, arguments, message):
    status, told = call(*arguments)
    assert status == 1 and told.startswith(f"switchyard: {message}") and "\n" not in told


def test_apply_and_status_say_why_an_engine_fails_while_others_run():
    fault = "10.0.0.3: /m has no model, but apply ran with fp_1: copy the model"
    two = {"llama": state({"RUNNING": 2, "STARTING": 1}, state="DEPLOYING", message=fault)}
    told = []
    cluster = Fake(two, DONE)
    cluster.failing = [fault]
    assert applying.apply(cluster, [WANTED], told.append) == 0
    assert told == [f"llama: 2 running, 1 starting; {fault}", "done"]
    cluster._states = [two]
    assert [*lines_of(report(cluster, [WANTED]))].count(f"  {fault}") == 1


@pytest.mark.parametrize(("is_roomy", "status"), [(True, 0), (False, 3)])
def test_an_engine_that_starts_slowly_waits_for_a_place_only_without_room(is_roomy, status):
    cluster = Fake(WAITS, WAITS, WAITS, DONE)
    cluster.is_roomy = is_roomy
    assert applying.apply(cluster, [WANTED], lambda line: None) == status


@pytest.mark.parametrize("word", ["UNHEALTHY", "DEPLOY_FAILED"])
@pytest.mark.parametrize(("faults", "status"), [([], 0), (["10.0.0.3: no memory"], 1)])
def test_a_failure_before_this_apply_is_none_of_it(faults, status, word):
    lost = state({"RUNNING": 2, "STARTING": 1}, state=word, message="10.0.0.3: no memory")
    cluster = Fake({"llama": lost}, DONE)
    cluster.failing = faults
    assert applying.apply(cluster, [WANTED], lambda line: None) == status


@pytest.mark.parametrize("command", ["node", "status"])
def test_a_command_in_another_directory_misses_the_file(call, monkeypatch, command, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    message = (
        "switchyard: cluster: there is no switchyard.toml here: run this command on a machine that"
        " has it"
    )
    assert call(command) == (1, message)


@pytest.mark.parametrize("command", ["head", "node", "apply", "status", "down"])
@pytest.mark.parametrize(
    ("mode", "key", "message"),
    [
        (0o604, "k" * 64, "is open to others: chmod o="),
        (0o600, "k" * 31, "has 31 bytes, but must have at least 32"),
        (0o600, None, "No such file"),
    ],
)
def test_a_key_that_is_missing_short_or_open_is_refused(call, command, mode, key, message):
    if key is None:
        call.key.unlink()
    else:
        call.key.write_text(key)
        call.key.chmod(mode)
    status, told = call(command)
    assert status == 1 and message in told and "\n" not in told


@pytest.mark.parametrize("command", ["apply", "status", "down"])
def test_a_head_that_cannot_be_reached_is_named(call, monkeypatch, command):
    monkeypatch.setattr(ray_client, "is_reachable", lambda *_: False)
    assert call(command) == (1, "switchyard: the head 10.0.0.1:6379 can't be reached")


def test_a_node_goes_on_trying_and_says_so_each_half_minute(monkeypatch, capsys):
    clock = iter(range(0, 1000, 5))
    answers = iter([False] * 12)  # six a half minute
    keys = iter(["the head has another key"] * 6)
    monkeypatch.setattr(commands, "fault_of_key", lambda *_: next(keys, ""))
    monkeypatch.setattr(commands.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(commands.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(commands, "is_reachable", lambda *_: next(answers, True))
    commands._wait_for_head(types.SimpleNamespace(head="10.0.0.1"), {})
    lines = capsys.readouterr().err.splitlines()
    first = "switchyard: the head 10.0.0.1:6379 can't be reached; trying again"
    assert lines == [first, first, "switchyard: the head has another key; trying again"]


@pytest.fixture
def there(monkeypatch):
    """Commands see this cluster."""
    cluster = Fake(WAITS, {})
    monkeypatch.setattr(commands, "Cluster", lambda settings, address: cluster)
    return cluster


def test_a_dry_run_shows_the_steps_and_declares_nothing(call, there):
    status, told = call("apply", "--dry-run")
    assert status == 0 and there.declared == []
    assert told == "llama: replaces 3 engines, as their version has changed"


def test_apply_declares_what_changes_no_engine_at_once(call, there, monkeypatch):
    """Such as a range of engines, by which Serve scales later."""
    monkeypatch.setattr(commands, "changes", lambda *_: [])
    [wanted] = commands.wanted(commands.read_settings())
    there._states[:] = [{"llama": state({"RUNNING": 3}, wanted.version)}]
    assert call("apply") == (0, "the engines match the settings\ndone")
    assert len(there.declared) == 1


def test_down_ends_the_engines_that_are_named_and_refuses_a_strange_name(call, there):
    status, told = call("down", "lama")
    assert status == 1 and there.deleted == []
    there._states[:] = [DONE, {}]
    status, told = call("down", "llama")
    assert (status, told, there.deleted) == (0, "ended: llama", ["llama"])


def test_status_shows_machines_engines_and_what_waits(there):
    lines = "\n".join(lines_of(report(there, [WANTED])))
    assert "10.0.0.1: head, 0 GPUs" in lines and "10.0.0.2: node, 2 GPUs" in lines
    assert "label big, draining" in lines
    assert "llama: 1 of 3 engines, 1 starting" in lines
    assert "  10.0.0.2:7000: ready, 3 jobs, 0 wanted; process 7, version v1, since" in lines
    assert lines.endswith("  waits for 1 GPU: 0 of 3 are free")


def test_status_for_programs_is_json_alone_whatever_ray_prints(call, there, monkeypatch):
    nodes = there.nodes()
    monkeypatch.setattr(there, "nodes", lambda: print("(raylet) marked dead") or nodes)
    done = CliRunner().invoke(commands.cluster, ["status", "--json"])
    assert json.loads(done.stdout)["nodes"] == nodes
    assert "(raylet) marked dead" in done.output


class Answers:
    """Answers of Serve's handle: one engine has answered, and the machine of another is lost."""

    def broadcast(self, name):
        return self

    def results(self, timeout_s, return_exceptions):
        if not return_exceptions:
            raise RuntimeError("lost")
        return [RuntimeError("lost"), {"at": "10.0.0.2:7000"}]


def test_a_lost_engine_hides_no_other_from_status_and_changes_no_file_of_engines():
    cluster = object.__new__(ray_client.Cluster)
    cluster._serve = types.SimpleNamespace(get_deployment_handle=lambda *_: Answers())
    assert cluster.engines("llama", is_whole=False) == [{"at": "10.0.0.2:7000"}]
    with pytest.raises(RuntimeError):
        cluster.engines("llama")


def test_a_new_key_is_the_owners_alone_and_replaces_none(call, tmp_path):
    path = str(tmp_path / "new.key")
    assert call("head", "--new-key", path) == (
        0,
        f"{path} has a new key; copy the file to each machine",
    )
    assert os.stat(path).st_mode & 0o777 == 0o600 and os.stat(path).st_size == 65
    status, told = call("head", "--new-key", path)
    assert status == 1 and "File exists" in told


def test_a_head_is_not_drained(call, monkeypatch):
    monkeypatch.setattr(commands, "addresses_here", lambda: ["10.0.0.1"])
    message = "switchyard: 10.0.0.1 is the head, and only other machines can be drained"
    assert call("node", "--drain") == (1, message)


def test_a_drain_waits_until_the_last_engine_of_the_machine_has_gone(call, monkeypatch):
    drained = []
    left = iter([["10.0.0.2:7000", "10.0.0.2:7001"]] * 3 + [["10.0.0.2:7001"], []])
    monkeypatch.setattr(ray_client, "drain", lambda _, address: drained.append(address))
    monkeypatch.setattr(commands.Place, "taken", lambda address: next(left))
    status, told = call("node", "--drain")
    until = ": waiting for replacements, and for all requests to end"
    assert (status, drained) == (0, ["10.0.0.2"])
    assert told.splitlines() == [
        f"10.0.0.2:7000, 10.0.0.2:7001{until}",
        f"10.0.0.2:7001{until}",
        "10.0.0.2 has no engine, and gets none until its `cluster node` is started again",
    ]
