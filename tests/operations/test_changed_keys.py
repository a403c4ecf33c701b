"""Files of keys that change while a server runs: pipes, half of a file, very many keys."""

import logging
import os
import threading

import pytest

from switchyard.app.operations import keyring as module
from switchyard.app.operations.keyring import Keyring
from tests.operations.conftest import KEYS, KeysFile, entry

ANN, BOB = (KEYS[name].encode() for name in ("ann", "bob"))


@pytest.fixture
def file(tmp_path):
    return KeysFile(tmp_path / "keys.toml").write(entry("ann"))


@pytest.fixture
def keyring(file, clock):
    made = Keyring(str(file.path), 0, False, lambda table: None, clock)
    yield made
    made.close()


def test_a_pipe_changes_nothing_and_a_good_file_after_it_is_read(file, keyring, clock, caplog):
    file.path.unlink()
    os.mkfifo(file.path, 0o600)
    caller = threading.Thread(target=keyring.renew, daemon=True)
    caller.start()
    caller.join(20)
    assert not caller.is_alive()
    clock.now += 1
    assert keyring.find(ANN) is not None
    errors = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
    assert len(errors) == 1 and "it is not a regular file" in errors[0]
    file.path.unlink()
    file.write(entry("bob"))
    clock.now += 1
    assert keyring.find(ANN) is None and keyring.find(BOB) is not None


def test_a_file_written_in_place_is_not_read_half(file, keyring, clock, monkeypatch):
    """The writer goes on between the reader's first look and its second."""
    whole, is_first = entry("ann") + entry("bob"), [True]

    def signature_of(path):
        found = os.stat(path)
        if threading.current_thread().name == "keys" and is_first:
            is_first.clear()
            file.path.write_text(whole)
        return found.st_mtime_ns, found.st_size, found.st_ino

    monkeypatch.setattr(module, "signature_of", signature_of)
    tables = []
    keyring._on_change = tables.append
    file.path.write_text(entry("bob"))
    keyring.renew(patience=20)
    assert [list(table.by_name) for table in tables] == [["ann", "bob"]]


def test_a_request_does_not_wait_for_very_many_keys(file, keyring, clock, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "switchyard.audit")
    let_go = threading.Event()
    read_keys = module.read_keys

    def slowly(*args):
        let_go.wait(20)
        return read_keys(*args)

    monkeypatch.setattr(module, "read_keys", slowly)
    file.write(entry("ann"), *(entry(f"k{i}") for i in range(2000)))
    clock.now += 1
    keyring.renew(patience=0.01)
    assert keyring.find(ANN) is not None and keyring.num_reloads == 0
    let_go.set()
    keyring._reader.join(60)
    [line] = [one.getMessage() for one in caplog.records if one.name == "switchyard.audit"]
    assert line.endswith(" and 1,990 more") and len(line) < 200
