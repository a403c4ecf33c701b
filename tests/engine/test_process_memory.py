"""Memory that goes back to the system, in its own process."""

import os
import sys
from types import SimpleNamespace

import pytest

from switchyard.engine.memory import process
from tests.conftest import run_code

CODE = """
import ctypes
from switchyard import engine

engine.keep_memory_small()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

blocks = [libc.malloc(1000) for _ in range(40_000)]
for block in blocks:
    ctypes.memset(block, 1, 1000)
for block in blocks[:-1]:  # above all of them lies the last
    libc.free(block)
before = resident()
engine.give_memory_back()
assert before - resident() > 30_000_000
"""


@pytest.mark.skipif(sys.platform != "linux", reason="of the GNU C library")
def test_what_was_freed_below_something_in_use_goes_back_too():
    run_code(CODE)


def test_settings_of_the_operator_are_left_as_they_are(monkeypatch):
    made = []
    libc = SimpleNamespace(mallopt=lambda *setting: made.append(setting))
    monkeypatch.setattr(process, "ctypes", SimpleNamespace(CDLL=lambda name: libc))
    for name in [name for name in os.environ if name.startswith("MALLOC_")]:
        monkeypatch.delenv(name)
    process.keep_memory_small()
    assert dict(made) == process.MALLOC
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    made.clear()
    process.keep_memory_small()
    assert made == []
