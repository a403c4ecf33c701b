"""Sources of engines: files and names, what is wrong in them, and when an address leaves."""

import socket
from dataclasses import replace
from functools import partial

import pytest

from switchyard.engine.config import ModelConfig
from switchyard.engine.errors import ModelError
from switchyard.engine.links.hosts import address
from switchyard.engine.links.hosts import members as following
from switchyard.engine.links.hosts.host import Host
from switchyard.engine.links.hosts.members import Members
from switchyard.engine.links.thread import EngineThread
from switchyard.engine.messages import Finished, Loaded, ReplicaState, ReplicaStates
from switchyard.engine.model.model_dir import ModelDir
from switchyard.engine.models.opening import engines_of, open_engine
from switchyard.engine.standing import Standing
from tests.engine.reading import take_all, wait_until
from tests.engine.replicas.house import INFO
from tests.scripted import ScriptedBackend, job


@pytest.fixture
def source(tmp_path):
    return tmp_path / "engines"


def members(*at):
    return Members(at, address.check)


def test_a_file_names_an_engine_a_line(source):
    source.write_text("# ours\n10.0.0.1:7000\n\n  unix:/run/e.sock  # beside\n[fd00::1]:7000\n")
    assert members("h:1", f"file:{source}", "10.0.0.1:7000").read() == [
        *("h:1", "10.0.0.1:7000", "unix:/run/e.sock", "[fd00::1]:7000")
    ]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("10.0.0.5", "'10.0.0.5' must be unix:PATH or HOST:PORT"),
        ("http://10.0.0.5:80", "'http://10.0.0.5:80' must be"),
        ("10.0.0.5:0", "must be"),
        ("10.0.0.5:65536", "must be"),
        ("10.0.0.5:7000 10.0.0.6:7000", "must be"),
        ("unix:e.sock", "must have an absolute path"),
        ("file:/another", "must be the address of an engine"),
        ("10.0.0.1:7000", "10.0.0.1:7000 is listed twice"),
    ],
)
def test_a_wrong_line_refuses_the_whole_reading(source, line, says, caplog):
    found = members(f"file:{source}")
    source.write_text("10.0.0.9:7000\n")
    assert found.follow() == ["10.0.0.9:7000"]
    source.write_text(f"10.0.0.1:7000\n# a comment\n{line}\n")
    with pytest.raises(ValueError, match=f"{source}, line 3: "):
        found.read()
    for _ in range(3):
        assert found.follow() is None
    assert says in found.fault and caplog.text.count(says) == 1
    source.write_text("10.0.0.9:7000\n")
    assert found.follow() == ["10.0.0.9:7000"]


@pytest.mark.parametrize("fault", ["empty", "away", "large", "a device", "binary"])
def test_a_source_that_does_not_tell_changes_nothing(source, fault):
    found = members(f"file:{source}", "10.0.0.1:7000")
    source.write_text("10.0.0.9:7000\n")
    both = found.follow()
    source.unlink()
    match fault:
        case "empty":
            source.write_text("# none\n")
        case "large":
            source.write_text("#" * 70_000)
        case "a device":
            source.symlink_to("/dev/zero")
        case "binary":
            source.write_bytes(b"\xff\xfe")
    assert [found.follow() for _ in range(3)] == [None] * 3 and str(source) in found.fault
    source.unlink(missing_ok=True)
    source.write_text("10.0.0.9:7000\n")
    assert sorted(found.follow()) == sorted(both)


def test_an_address_leaves_after_two_readings_without_it(source):
    found = members(f"file:{source}")
    told = []
    for text in ("a:1\nb:1", "a:1", "a:1\nb:1", "a:1", "a:1", "a:1\nb:1"):
        source.write_text(text)
        told.append("".join(at[0] for at in sorted(found.follow())))
    assert told == ["ab", "ab", "ab", "ab", "a", "ab"]


def test_each_of_many_servers_takes_thirty_engines_and_one_that_goes_changes_one_of_them(source):
    engines = [f"10.0.0.{i}:7000" for i in range(100)]
    source.write_text("\n".join(engines))
    servers = [Members([f"file:{source}"], address.check, f"{i}") for i in range(20)]
    cells = [set(one.follow()) for one in servers]
    assert {len(cell) for cell in cells} == {30} and set().union(*cells) == set(engines)
    source.write_text("\n".join(engines[1:]))
    for server, before in zip(servers, cells, strict=True):
        server.follow()
        after = set(server.follow())
        assert len(after) == 30 and before - after == before & {engines[0]}
    first, second = (set(members(f"file:{source}").follow()) for _ in range(2))
    assert len(first & second) < 30


def test_a_name_is_all_its_addresses(monkeypatch):
    asked = []

    def look_up(host, port, **_):
        asked.append((host, port))
        hosts = ("10.0.0.2", "fd00::7", "10.0.0.1", "10.0.0.2")
        return [(None, None, None, None, (one, port)) for one in hosts]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    read = members("dns:engines:7000").read()
    assert read == ["10.0.0.1:7000", "10.0.0.2:7000", "[fd00::7]:7000"]
    assert asked == [("engines", 7000)]

    def fail(*_, **__):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(OSError, match="dns:engines:7000: Name or service not known"):
        members("dns:engines:7000").read()


@pytest.mark.parametrize(
    ("at", "says"),
    [
        ("file:engines", "'file:engines' must have an absolute path after file:"),
        ("dns:engines", "'dns:engines' must be dns:HOST:PORT"),
        ("dns:engines:0", "must be dns:HOST:PORT"),
        ("dns:engines:7000", "dns:engines:7000 needs a key: set engine_key_file"),
        ("cluster", "'cluster' must be unix:PATH or HOST:PORT"),
        ("host:port", "'host:port' must be unix:PATH or HOST:PORT"),
        ("unix:engine.sock", "must have an absolute path"),
    ],
)
def test_a_wrong_source_is_named_before_any_work(at, says):
    config = ModelConfig("none", "m", "cpu", link="socket", at=(at,))
    for attempt in (open_engine, engines_of):
        with pytest.raises(ModelError, match=says) as caught:
            attempt(config)
        assert caught.value.param == ("engine_key_file" if "key" in says else "at")


def test_a_line_that_needs_a_key_is_told_where_none_is_set(source):
    source.write_text("10.0.0.1:7000\n")
    config = ModelConfig("none", "m", "cpu", link="socket", at=(f"file:{source}",))
    with pytest.raises(ValueError, match=r"line 1: 10\.0\.0\.1:7000 needs a key"):
        engines_of(config)


def test_a_server_holds_as_many_jobs_as_its_engines_now():
    config = ModelConfig(
        *("path", "m", "cpu", "socket"), at=("file:/a",), max_batch_size=5, max_pending=4
    )
    assert config.max_jobs == 8 * 5 + 4
    standing = Standing("m")
    standing.note(Loaded(INFO))
    for statuses, most in ((["ready"] * 3 + ["leaving"], 19), ([], 9)):
        states = [ReplicaState(one, "", 0, (), "h:1", None, 2, 0) for one in statuses]
        standing.note(ReplicaStates(tuple(states)))
        assert standing.max_jobs(config) == most
    assert standing.num_restarts == 8  # those of engines that have left, too


def test_a_server_waits_for_a_source_and_follows_it(model_path, tmp_path, source, monkeypatch):
    monkeypatch.setattr(following, "PERIOD", 0.02)
    config = ModelConfig(model_path, "m", "cpu", silence_timeout=60.0)
    fingerprint = ModelDir.read(model_path).fingerprint
    hosts = {}
    for name in "ab":
        at = f"unix:{tmp_path}/{name}"
        over_thread = partial(EngineThread, config, ScriptedBackend)
        hosts[name] = Host(config, over_thread, at, b"", fingerprint)
        hosts[name].start()
    model = open_engine(replace(config, link="socket", at=(f"file:{source}",)))
    model.start()
    wait_until(model, lambda: model.error is not None)
    assert model.state == "loading" and "no engine: [Errno 2] No such file" in str(model.error)
    source.write_text(f"unix:{tmp_path}/a\n")
    assert model.wait_until_loaded(20) and model.error is None
    assert isinstance(take_all(model.submit([job("1")]))[-1], Finished)
    source.write_text(f"unix:{tmp_path}/b\n")
    wait_until(model, lambda: [one.at[-1] for one in model.standing.replicas] == ["b"])
    assert hosts["a"].close(timeout=20)
    assert isinstance(take_all(model.submit([job("2")]))[-1], Finished)
    assert hosts["b"].close(timeout=20)
    wait_until(model, lambda: model.state == "recovering")
    assert model.close(timeout=20) and model.standing.is_stopped
