"""Has a separate process read unknown model directories before this process opens them. Can be used
on any thread.

The files may come from a stranger, and may be designed to use up all memory, to take forever to
read, or to crash a library.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from switchyard.engine.errors import ModelError
from switchyard.engine.model.contents import MAX_FILES, SUFFIXES, TEMPLATES
from switchyard.engine.trial import child

logger = logging.getLogger(__name__)

CODE = f"from {child.__name__} import main; main()"
START = 30.0  # seconds to start a process, and to import the readers

Signature = tuple[Any, ...]


class Passed:
    """The directories that have passed. A fork of this process knows them too. A directory is
    identified by the names, sizes and times of its files, because this process would have to read
    the contents to hash them. The owner of a file can set its modification time, but not its
    `st_ctime`. The list does not survive a restart, because the next version of Switchyard may
    differ.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the dictionary
        self._passed: dict[tuple[str, tuple[str, ...]], Signature] = {}

    def knows(self, path: str, readers: Sequence[str], signature: Signature) -> bool:
        with self._lock:
            return self._passed.get((os.path.abspath(path), tuple(readers))) == signature

    def note(self, path: str, readers: Sequence[str], signature: Signature) -> None:
        with self._lock:
            self._passed[os.path.abspath(path), tuple(readers)] = signature


PASSED = Passed()


def check_tried(paths: Iterable[str], readers: Sequence[str] = ()) -> None:
    """Raises ModelError for the first of these directories that doesn't pass."""
    for error in try_directories(paths, readers).values():
        raise error


def try_directories(paths: Iterable[str], readers: Sequence[str] = ()) -> dict[str, ModelError]:
    """Has another process read those directories that have not passed or have changed since.
    Returns the errors of the directories that fail. `readers`: additional functions for reading
    directories, as "module:function", which are called with the ModelDir and the Tokenizer.
    """
    asked = {path: _signature(path) for path in paths}
    unknown = [path for path in asked if not PASSED.knows(path, readers, asked[path])]
    if not unknown:
        return {}
    begin = time.monotonic()
    logger.info("trying to read the files of %s in a separate process", ", ".join(unknown))
    errors = _run(unknown, readers)
    for path in unknown:
        if path not in errors and _signature(path) != asked[path]:
            errors[path] = ModelError(f"{path} changed while it was tried")
        if path not in errors:
            PASSED.note(path, readers, asked[path])
    logger.info("the files were tried in %.1f s", time.monotonic() - begin)
    return errors


def _signature(path: str) -> Signature:
    """A value that changes when a file from which a model is read has changed."""
    root = Path(path).absolute()
    found: list[tuple[Any, ...]] = []
    for folder in (root, root / TEMPLATES):
        try:
            with os.scandir(folder) as files:
                for file in islice(files, MAX_FILES + 1):
                    if file.name.endswith(SUFFIXES):
                        stat = file.stat()
                        times = stat.st_mtime_ns, stat.st_ctime_ns
                        found.append((file.path, stat.st_ino, stat.st_size, *times))
        except OSError as reason:  # no folder, or a link to nothing: the trial reports it
            found.append((str(folder), reason.errno))
    return tuple(sorted(found))


def _run(paths: Sequence[str], readers: Sequence[str]) -> dict[str, ModelError]:
    """Run one process, which forks once for each of the directories."""
    environment = {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "RAYON_NUM_THREADS": "1",  # each thread of `tokenizers` would use up memory
        "CUDA_VISIBLE_DEVICES": "",
    }
    told = ""
    try:
        done = subprocess.run(
            [_python(), "-P", "-c", CODE, json.dumps([list(paths), list(readers)])],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            start_new_session=True,  # signals to our process group don't reach it
            env=os.environ | environment,
            timeout=START + len(paths) * (child.MAX_SECONDS + 1),
        )
        told = done.stdout.decode()
        wrong = f"ended with {done.returncode}: {_last(done.stderr)}" if done.returncode else ""
    except subprocess.TimeoutExpired as reason:
        told = (reason.stdout or b"").decode()
        wrong = f"took more than {reason.timeout:.0f} s"
    except OSError as reason:
        wrong = f"can't be started: {reason}"
    stages: dict[str, str] = {}
    errors: dict[str, ModelError] = {}
    passed = set()
    for line in told.splitlines():
        match json.loads(line):
            case ["reads", path, stage]:
                stages[path] = stage
            case ["fails", path, reason, param]:
                errors[path] = ModelError(reason, param)
            case ["ends", path, status] if path not in errors:
                if status == 0:
                    passed.add(path)
                else:
                    where = stages.get(path, "files")
                    errors[path] = ModelError(f"{path}: reading its {where} {_end(status)}")
    for path in paths:
        if path not in errors and path not in passed:
            errors[path] = ModelError(f"{path} can't be tried: the process for that {wrong}")
    return errors


def _end(status: int) -> str:
    """Returns why a process that was reading has ended."""
    memory = f"{child.MAX_MEMORY >> 30} GiB of memory"
    match -status:
        case signal.SIGXCPU | signal.SIGKILL:
            return f"takes more than {child.MAX_WORK} s of CPU time, or too much memory"
        case signal.SIGALRM:
            return f"takes more than {child.MAX_SECONDS} s"
        case signal.SIGABRT:
            return f"takes more than {memory}, or crashes a library"
    return f"crashes a library: status {status}"


def _python() -> str:
    """The path of the interpreter. `sys.executable` is the server's program if that program embeds
    Python.
    """
    if os.path.basename(sys.executable or "").startswith("python"):
        return sys.executable
    return os.path.join(sys.prefix, "bin", "python3")


def _last(data: bytes) -> str:
    return (data.decode(errors="replace").split("\n") or [""])[-2:][0]
