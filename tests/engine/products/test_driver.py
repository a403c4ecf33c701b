"""How kernels are compiled, kept, loaded and launched, with a driver and compiler of the tests."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from switchyard.engine.backends.exl.faults import explain
from switchyard.engine.backends.exl2.cuda.products import driver, nvrtc
from switchyard.engine.errors import DeviceLost

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")


class Last(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        *((name, ctypes.c_uint) for name in ("shared", "num_attributes", "parameter")),
        *((name, ctypes.c_int) for name in ("id", "allowed")),
        *((name, ctypes.c_ulonglong) for name in ("stream", "function")),
    ]


@pytest.fixture
def libcuda(tmp_path, monkeypatch):
    source, library = Path(__file__).with_name("libcuda.c"), tmp_path / "libcuda.so"
    subprocess.run(["gcc", "-w", "-shared", "-fPIC", source, "-o", library], check=True)
    loaded = ctypes.CDLL(str(library))
    monkeypatch.setattr(driver, "_driver", lambda: loaded)
    return loaded


@needs_compiler
@pytest.mark.parametrize("overlaps", [True, False])
def test_a_launch_is_what_the_driver_reads(libcuda, overlaps):
    kernels = driver.load(b"code", "first", "second", overlaps=overlaps)
    kernels[1].launch((3, 4), 128, 5000, ctypes.c_uint(42), 2**40)
    last = Last.in_dll(libcuda, "last")
    assert [*last.grid, *last.block] == [3, 4, 1, 128, 1, 1]
    assert (last.shared, last.stream, last.parameter) == (5000, 2**40, 42)
    assert last.function == ord("s")
    # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    assert (last.num_attributes, last.id, last.allowed) == (overlaps, 6, 1)


@needs_compiler
def test_the_drivers_errors_are_those_that_torch_would_raise(libcuda):
    [kernel] = driver.load(b"code", "name", overlaps=False)
    with pytest.raises(RuntimeError, match="CUDA error: an illegal memory access") as failed:
        kernel.launch((666, 1), 32, 0, ctypes.c_uint(0), 0)
    assert isinstance(explain(failed.value), DeviceLost)
    with pytest.raises(driver.Unavailable, match="can't load the compiled kernels: error 200"):
        driver.load(b"other", "name", overlaps=False)


@needs_compiler
def test_what_a_multiprocessor_holds_is_asked_of_the_driver(libcuda):
    [kernel] = driver.load(b"code", "name", overlaps=False)
    assert [kernel.resident_blocks(256, size) for size in (100, 150_000, 250_000)] == [8, 8, 0]
    assert (driver.most_shared(3), driver.version()) == (1003, "13000")


class Compiled:
    """In place of NVRTC."""

    version = "13.0"
    options: list[list[str]] = []  # noqa: RUF012

    def compile(self, name, options):
        self.options.append(options)
        return f"{name} {options}".encode()


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(nvrtc, "Compiler", Compiled)
    monkeypatch.setattr(Compiled, "options", [])
    return Compiled.options


SOURCES = [("unpack.cu", {}), ("multiply.cu", {"TT": 1}), ("multiply.cu", {"TT": 2})]


def test_a_later_start_compiles_nothing(compiled):
    first = nvrtc.Code("card", (8, 9), "1").read_all(SOURCES)
    assert len(set(first)) == 3 and len(compiled) == 3
    assert ["--gpu-architecture=sm_89", "-std=c++17", "-DTT=2"] in compiled
    assert nvrtc.Code("card", (8, 9), "1").read_all(SOURCES) == first
    assert len(compiled) == 3


@pytest.mark.parametrize("other", [("other", (8, 9), "1"), ("card", (8, 9), "2")])
def test_another_card_or_driver_compiles_anew(compiled, other):
    nvrtc.Code("card", (8, 9), "1").read_all(SOURCES)
    nvrtc.Code(*other).read_all(SOURCES)
    assert len(compiled) == 6


def test_a_changed_source_compiles_anew(compiled, monkeypatch, tmp_path):
    for file in nvrtc.HERE.glob("*.cu*"):
        shutil.copy(file, tmp_path)
    monkeypatch.setattr(nvrtc, "HERE", tmp_path)
    code = nvrtc.Code("card", (8, 9), "1")
    code.read_all(SOURCES)
    with (tmp_path / "weights.cuh").open("a") as header:
        header.write("// changed\n")
    code.read_all(SOURCES)
    assert len(compiled) == 6


def test_code_that_cant_be_kept_is_compiled_at_each_start(compiled, tmp_path):
    (tmp_path / "switchyard").write_text("a file where the folder would be")
    for _ in range(2):
        assert nvrtc.Code("card", (8, 9), "1").read("unpack.cu", {})
    assert len(compiled) == 2
