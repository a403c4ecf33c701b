"""The kernels' source compiled for a CPU."""

import contextlib
import ctypes
import functools
import pathlib
import subprocess
import tempfile

from switchyard.engine.backends.exl2.cuda import products

HERE = pathlib.Path(__file__).parent
SOURCES = pathlib.Path(products.__file__).parent
LAUNCHERS = {
    "multiply.cu": "LAUNCHER(multiply, Params)",
    "unpack.cu": "LAUNCHER(unpack, Unpack)",
    "between.cu": "LAUNCHER(normalize, Norm) LAUNCHER(gather, Gather) LAUNCHER(activate, Activate)",
}


@functools.cache
def compiled(source, tiling=None):
    """The library of one source; of multiply.cu for a tiling."""
    macros = {} if tiling is None else tiling.macros
    with tempfile.TemporaryDirectory() as folder:
        library = pathlib.Path(folder, "kernels.so")
        command = ["g++", "-O1", "-std=c++20", "-w", "-shared", "-fPIC"]
        command += ["-U_FORTIFY_SOURCE"]  # it takes jumps between stacks for a mistake
        command += [f"-I{HERE}", f"-I{SOURCES}", f"-DSOURCE=<{source}>"]
        command += [f"-DLAUNCHERS={LAUNCHERS[source]}", *(f"-D{k}={v}" for k, v in macros.items())]
        subprocess.run([*command, HERE / "kernels.cpp", "-o", library], check=True)
        return ctypes.CDLL(str(library))


def launch(kernel, params, x, y, threads, shared=0):
    kernel(ctypes.byref(params), x, y, threads, shared)


@contextlib.contextmanager
def reversed_blocks(library, is_reversed):
    """While open, the last block of a launch is the first to run."""
    place = ctypes.c_int.in_dll(library, "is_reversed")
    place.value = is_reversed
    yield
    place.value = False
