"""Files that the server reads: pipes, devices, sizes, slow disks, writers at work."""

import os
import threading

import pytest

from switchyard import engine, files
from switchyard.app import SettingsError, read_settings
from switchyard.app.operations.keys import read_keys
from switchyard.engine.links.hosts.key import read_key


def ended(function, *args):
    """What the call raises, or None; it must return."""
    raised = []

    def call():
        try:
            function(*args)
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    return next(iter(raised), None)


@pytest.fixture
def pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    return str(tmp_path / "pipe")


def test_a_pipe_is_refused_for_settings_and_for_the_engines_key(pipe, monkeypatch):
    monkeypatch.setenv("SWITCHYARD_CONFIG", pipe)
    error = ended(read_settings)
    assert isinstance(error, SettingsError) and "it is not a regular file" in str(error)
    error = ended(read_key, pipe)
    assert isinstance(error, engine.ModelError) and "it is not a regular file" in str(error)


def test_a_device_and_a_file_beyond_its_bound_are_refused_before_they_are_read(tmp_path):
    assert "not a regular file" in str(ended(files.read_file, "/dev/zero", 10))
    large = tmp_path / "large"
    large.touch()
    os.truncate(large, 1 << 40)
    assert "it has more than 1000 bytes" in str(ended(files.read_file, large, 1000))


def test_a_slow_read_is_named_and_a_file_that_changes_refused(tmp_path, monkeypatch, caplog):
    path = tmp_path / "slow"
    path.write_text("12")
    fstat, is_told = os.fstat, threading.Event()
    monkeypatch.setattr(files, "SLOW", 0.0)
    monkeypatch.setattr(files.logger, "error", lambda *args: is_told.set())

    def slow(descriptor):
        assert is_told.wait(20)
        status = fstat(descriptor)
        path.write_text("123")
        return status

    monkeypatch.setattr(os, "fstat", slow)
    assert "it changed while it was read" in str(ended(files.read_file, path, 10))


def test_a_read_that_never_ends_fails_after_its_time(tmp_path, monkeypatch, caplog):
    (tmp_path / "keys").write_text("12")
    is_over, fstat = threading.Event(), os.fstat
    monkeypatch.setattr(files, "SLOW", 0.1)
    monkeypatch.setattr(files, "MOST", 0.2)
    monkeypatch.setattr(os, "fstat", lambda descriptor: is_over.wait(20) and fstat(descriptor))
    error = ended(read_keys, str(tmp_path / "keys"), 0, False)
    assert isinstance(error, SettingsError) and "it can't be read within 0 s" in str(error)
    assert "reading" in caplog.text and "has taken more than 0 s" in caplog.text
    is_over.set()
    for thread in threading.enumerate():
        if thread.name == "read":
            thread.join(20)
