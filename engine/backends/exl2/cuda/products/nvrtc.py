"""Compiles CUDA C++ with NVRTC, which is part of torch's wheels, and keeps the compiled code on
disk.
"""

import contextlib
import ctypes
import hashlib
import logging
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from switchyard.engine.backends.exl2.cuda.products.driver import Unavailable

logger = logging.getLogger(__name__)

HERE = pathlib.Path(__file__).parent
HEADERS = ("instructions.cuh", "halves.cuh", "weights.cuh")


class Compiler:
    """NVRTC, loaded as a library. Raises Unavailable if it can't be loaded."""

    def __init__(self) -> None:
        self._library = _load()
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        self.version = f"{major.value}.{minor.value}"

    def compile(self, name: str, options: Sequence[str]) -> bytes:
        """Returns the compiled code of a source file in this folder. Can be called on any thread.
        Raises Unavailable.
        """
        rtc, program = self._library, ctypes.c_void_p()
        texts = [(HERE / header).read_bytes() for header in HEADERS]
        _check(
            rtc.nvrtcCreateProgram(
                ctypes.byref(program),
                (HERE / name).read_bytes(),
                name.encode(),
                len(HEADERS),
                (ctypes.c_char_p * len(texts))(*texts),
                (ctypes.c_char_p * len(texts))(*(header.encode() for header in HEADERS)),
            ),
            name,
        )
        try:
            given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            code = rtc.nvrtcCompileProgram(program, len(options), given)
            if code:
                log = self._read(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog")
                raise Unavailable(f"NVRTC {self.version}, {name}: {_first_line(log)}")
            return self._read(program, "nvrtcGetCUBINSize", "nvrtcGetCUBIN")
        finally:
            rtc.nvrtcDestroyProgram(ctypes.byref(program))

    def _read(self, program: ctypes.c_void_p, size_name: str, name: str) -> bytes:
        size = ctypes.c_size_t()
        _check(getattr(self._library, size_name)(program, ctypes.byref(size)), size_name)
        text = ctypes.create_string_buffer(size.value)
        _check(getattr(self._library, name)(program, text), name)
        return text.raw


class Code:
    """Compiled sources for one type of GPU, kept in files. Can be used on any thread."""

    def __init__(self, card: str, capability: tuple[int, int], driver_version: str) -> None:
        """Raises Unavailable without NVRTC."""
        self._card, self._capability = card, capability
        self._compiler = Compiler()
        self._circumstances = (card, driver_version, self._compiler.version)
        root = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
        self._folder = pathlib.Path(root, "switchyard", "kernels")

    def read_all(self, sources: Sequence[tuple[str, Mapping[str, int]]]) -> list[bytes]:
        """Returns the code for these names and macros. Sources without a file of compiled code are
        compiled in parallel.
        """
        missing = [one for one in sources if not self._path(*one).exists()]
        begin = time.monotonic()
        if missing:
            logger.info(
                "compiling %d kernels for %s; later loads reuse them", len(missing), self._card
            )
        with ThreadPoolExecutor(4, thread_name_prefix="compile") as threads:
            codes = list(threads.map(lambda one: self.read(*one), sources))
        if missing:
            logger.info("compiled in %.1f s", time.monotonic() - begin)
        return codes

    def read(self, name: str, macros: Mapping[str, int]) -> bytes:
        """Raises Unavailable."""
        path = self._path(name, macros)
        with contextlib.suppress(OSError):
            if code := path.read_bytes():
                return code
        code = self._compiler.compile(name, options_of(self._capability, macros))
        with contextlib.suppress(OSError):  # if the code can't be kept, each start compiles it
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
                file.write(code)
            os.replace(file.name, path)
        return code

    def _path(self, name: str, macros: Mapping[str, int]) -> pathlib.Path:
        """The file for a source compiled with these options, for this GPU and NVRTC."""
        parts = [*self._circumstances, name, *options_of(self._capability, macros)]
        parts += [(HERE / file).read_text() for file in (name, *HEADERS)]
        key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
        return self._folder / f"{name.removesuffix('.cu')}-{key[:32]}.cubin"


def options_of(capability: tuple[int, int], macros: Mapping[str, int]) -> list[str]:
    major, minor = capability
    return [
        f"--gpu-architecture=sm_{major}{minor}",
        "-std=c++17",
        *(f"-D{name}={value}" for name, value in macros.items()),
    ]


def _load() -> ctypes.CDLL:
    for file in _files():
        with contextlib.suppress(OSError):
            # NVRTC searches only the system's folders for its built-in functions, unless they are
            # already loaded.
            for part in sorted(file.parent.glob("libnvrtc-builtins*.so*")):
                ctypes.CDLL(str(part), ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(str(file))
    raise Unavailable("NVRTC can't be loaded")


def _files() -> list[pathlib.Path]:
    """Returns the NVRTC libraries in torch's wheels and in torch itself, followed by the system's
    NVRTC.
    """
    places = [pathlib.Path(path, "nvidia") for path in sys.path]
    places.append(pathlib.Path(torch.__file__).parent / "lib")
    patterns = ("cu*/lib/libnvrtc.so.*", "cuda_nvrtc/lib/libnvrtc.so.*", "libnvrtc*.so*")
    found = [file for place in places for p in patterns for file in sorted(place.glob(p))]
    wanted = [f for f in found if "builtins" not in f.name and ".alt." not in f.name]
    version = (torch.version.cuda or "").partition(".")[0]
    return [*wanted, pathlib.Path(f"libnvrtc.so.{version}")]


def _check(code: int, what: str) -> None:
    if code:
        raise Unavailable(f"NVRTC, {what}: error {code}")


def _first_line(log: bytes) -> str:
    return log.decode(errors="replace").partition("\n")[0].strip("\0 ")
