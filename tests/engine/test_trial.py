"""Unknown model directories are read in their own process before this one opens them."""

import os
import resource
import signal
import sys
import time

import pytest

from switchyard import engine
from switchyard.app.chat.trial import READERS
from switchyard.engine import ModelConfig
from switchyard.engine.trial import child, trial
from tests.conftest import run_code
from tests.hostile import KINDS, backtrack, spoiled


@pytest.fixture
def runs(monkeypatch):
    """The directories that are tried, in order."""
    tried = []

    def run(paths, readers):
        tried.extend(paths)
        return {}

    monkeypatch.setattr(trial, "_run", run)
    return tried


def limited(monkeypatch, limit, value):
    """A limit of trials, here and in their process."""
    monkeypatch.setattr(child, f"MAX_{limit}", value)
    code = f"from {child.__name__} import main; main.__globals__['MAX_{limit}'] = {value}; main()"
    monkeypatch.setattr(trial, "CODE", code)


def test_hostile_kinds_end_with_a_line_in_bounded_time_and_memory(
    model_path, tmp_path, monkeypatch
):
    limited(monkeypatch, "WORK", 4)
    paths = {
        str(spoiled(spoil, model_path, tmp_path)): told.replace("10 s", "4 s")
        for spoil, told in KINDS.items()
    }
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.thread_time()
    errors = engine.try_directories(paths, READERS)
    assert time.thread_time() - begin < 1  # of this thread: the work was another process's
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KB
    assert errors.keys() == paths.keys()
    for path, told in paths.items():
        with pytest.raises(engine.ModelError, match=told) as failed:
            raise errors[path]
        assert "\n" not in str(failed.value) and len(str(failed.value)) < 2100
        assert path in str(failed.value)


def test_no_engine_is_opened_over_a_directory_that_fails(model_path, tmp_path):
    path = str(spoiled(backtrack, model_path, tmp_path))
    for paths in ({"path": path}, {"path": model_path, "draft_model": path}):
        with pytest.raises(engine.ModelError, match="retry-limit"):
            engine.open_engine(ModelConfig(name="m", **paths))


def test_a_directory_is_tried_once_until_its_files_change(directory, runs):
    path = directory
    for _ in range(2):
        assert engine.try_directories([str(path)]) == {}
    assert runs == [str(path)]
    status = (path / "config.json").stat()
    (path / "config.json").write_text((path / "config.json").read_text()[::-1])
    os.utime(path / "config.json", ns=(status.st_atime_ns, status.st_mtime_ns))
    engine.try_directories([str(path)])
    (path / "chat_template.jinja").write_text("x")
    engine.try_directories([str(path)])
    engine.try_directories([str(path)], READERS)  # which have not read it yet
    assert len(runs) == 4


def test_a_directory_that_changes_during_its_trial_fails(directory, monkeypatch):
    def change(paths, readers):
        (directory / "chat_template.jinja").write_text("x")
        return {}

    monkeypatch.setattr(trial, "_run", change)
    with pytest.raises(engine.ModelError, match="changed while it was tried"):
        engine.open_engine(ModelConfig(str(directory), "m"))


@pytest.mark.parametrize(
    ("limit", "does", "told"),
    [
        ("SECONDS", "__import__('time').sleep(600)", "takes more than 3 s"),
        ("WORK", "any(iter(int, 1))", "takes more than 3 s of CPU time"),
        ("WORK", "bytearray(1 << 31)", "takes more than 1 GiB of memory"),
        ("WORK", "__import__('os').abort()", "1 GiB of memory, or crashes a library"),
        ("WORK", "__import__('ctypes').string_at(0)", "crashes a library: status -11"),
        ("SECONDS", "[]['one\\ntwo']", "fails: TypeError: list indices must be integers"),
    ],
)
def test_whatever_a_library_does_is_one_line(model_path, tmp_path, monkeypatch, limit, does, told):
    (tmp_path / "library.py").write_text(f"def read(*_): {does}")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    limited(monkeypatch, limit, 3)
    errors = engine.try_directories([model_path, str(tmp_path)], ["library:read"])
    assert told in str(errors[model_path])
    assert "config.json" in str(errors[str(tmp_path)])  # the next one is tried all the same


def test_a_trial_that_cannot_begin_is_one_line(model_path, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    errors = engine.try_directories([model_path], ["switchyard.nothing:read"])
    assert "can't be tried: the process for that can't be started" in str(errors[model_path])
    monkeypatch.undo()
    errors = engine.try_directories([model_path], ["switchyard.nothing:read"])
    assert str(errors[model_path]).endswith("No module named 'switchyard.nothing'")


def test_a_host_may_embed_python_and_ignore_the_end_of_its_children(directory, monkeypatch):
    """As uWSGI does."""
    monkeypatch.setattr(sys, "executable", "/usr/sbin/uwsgi")
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert engine.try_directories([str(directory)], READERS) == {}
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_the_process_of_a_trial_imports_no_torch():
    run_code(
        f"import sys, {child.__name__}, switchyard.app.chat.trial;"
        "assert not {'torch', 'exllamav2', 'numpy'} & set(sys.modules)"
    )
