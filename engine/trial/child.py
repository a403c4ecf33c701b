"""The process that reads unknown model directories, each in its own fork and within limits."""

import contextlib
import ctypes
import importlib
import json
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from switchyard.engine.errors import EngineError, ModelError
from switchyard.engine.grammar.grammars import Grammars
from switchyard.engine.model.model_dir import ModelDir
from switchyard.engine.model.tensors import read_sizes
from switchyard.engine.model.tokenizer import Tokenizer
from switchyard.engine.model.tokens.growth import MAX_GROWTH

MAX_MEMORY = 1 << 30  # bytes; a vocabulary of 262,000 takes some 430 MB
MAX_WORK = 10  # seconds of CPU time; a vocabulary of 262,000 takes 1.5
MAX_READING = 4  # of these seconds, for the tokenizer; meanwhile a server's other threads don't run
MAX_SECONDS = 60  # seconds, most of them for a slow disk
MAX_TOLD = 2000  # characters of a reason
PR_SET_PDEATHSIG = 1  # linux/prctl.h

RUN = 64  # repeats of a character; this catches expressions that double their work
LONG_RUN = 1 << 14  # this catches those whose work grows with the square of the length
MAX_CHARACTERS = 256

Reader = Callable[[ModelDir, Tokenizer], None]


def main() -> None:
    """Runs as `python -c … ORDER`, and prints a line of JSON for each event."""
    paths, names = json.loads(sys.argv[1])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a host may ignore it
    _end_with_parent()
    parts = [name.partition(":") for name in names]
    readers = [getattr(importlib.import_module(module), name) for module, _, name in parts]
    for path in paths:
        pid = os.fork()
        if pid == 0:
            try:
                _read(path, readers)
            finally:
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        _tell(1, "ends", path, os.waitstatus_to_exitcode(status))


def _read(path: str, readers: list[Reader]) -> None:
    """Runs in the fork. Does not return."""
    out = os.dup(1)
    with open(os.devnull, "w") as nothing:
        for descriptor in (1, 2):  # libraries may print anything
            os.dup2(nothing.fileno(), descriptor)
    _set_limits()
    stage = "files"

    def tell(now: str) -> None:
        nonlocal stage
        stage = now
        _tell(out, "reads", path, stage)

    try:
        _try(path, readers, tell)
    except MemoryError:
        reason = f"{path}: reading its {stage} takes more than {MAX_MEMORY >> 30} GiB of memory"
        _tell(out, "fails", path, reason, None)
    except ModelError as error:
        text = str(error) if path in str(error) else f"{path}: {error}"
        _tell(out, "fails", path, _line(text), error.param)
    except BaseException as error:  # includes panics of Rust libraries
        name = "" if isinstance(error, EngineError) else f"{type(error).__name__}: "
        _tell(out, "fails", path, _line(f"{path}: reading its {stage} fails: {name}{error}"), None)
    os._exit(0)


def _try(path: str, readers: list[Reader], tell: Callable[[str], None]) -> None:
    """Does what a server does with untrusted files."""
    tell("JSON files")
    model_dir = ModelDir.read(path)
    tell("weights' headers")
    read_sizes(model_dir.path)
    tell("tokenizer.json")
    begin = time.process_time()
    tokenizer = Tokenizer(model_dir)
    if time.process_time() - begin > MAX_READING:
        raise ModelError(f"{path}: reading tokenizer.json took more than {MAX_READING} s")
    for text in _texts(Path(path, "tokenizer.json").read_text()):
        token_ids = tokenizer.encode(text, MAX_GROWTH * len(text))
        tokenizer.decode(token_ids)
    tell("vocabulary")
    with contextlib.suppress(EngineError):  # completions need no grammars
        Grammars(tokenizer)
    for reader in readers:
        tell("chat template")
        reader(model_dir, tokenizer)


def _texts(source: str) -> Iterator[str]:
    """Texts on which a hostile expression in tokenizer.json may take forever."""
    yield "".join(map(chr, range(32, 127))) + " é漢字😀\r\n\n"
    patterns = "".join(re.findall(r'"Regex"\s*:\s*"((?:[^"\\]|\\.)*)"', source))
    characters = dict.fromkeys("a0 \n.é漢" + patterns)
    yield "\ue000".join(c * RUN for c in list(characters)[:MAX_CHARACTERS])
    for character in "a ":
        yield character * LONG_RUN + "\ue000"


def _set_limits() -> None:
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_DATA: MAX_MEMORY,  # not RLIMIT_AS, which counts reserved memory too
        resource.RLIMIT_CPU: MAX_WORK,
    }
    for kind, most in limits.items():
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(
            kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard)
        )
    with contextlib.suppress(OSError):  # if memory runs out, this process is killed first
        Path("/proc/self/oom_score_adj").write_text("1000")
    _end_with_parent()
    for number in (signal.SIGALRM, signal.SIGXCPU):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.setitimer(signal.ITIMER_REAL, MAX_SECONDS)


def _end_with_parent() -> None:
    with contextlib.suppress(AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _tell(out: int, *told: Any) -> None:
    os.write(out, json.dumps(told).encode() + b"\n")


def _line(text: str) -> str:
    return " ".join(text.split())[:MAX_TOLD]
