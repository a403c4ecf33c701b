"""Loads compiled kernels and launches them through CUDA's driver."""

import ctypes
import functools

SHARED_OF_BLOCK = 97  # CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
MAX_SHARED, PLAIN_SHARED = 8, 48 * 1024  # an attribute; bytes that need no attribute
OVERLAP = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


class Unavailable(RuntimeError):
    """The kernels are not available on this system."""


class _Attribute(ctypes.Structure):
    _fields_ = [
        ("id", ctypes.c_int),
        ("padding", ctypes.c_int),
        ("value", ctypes.c_int),
        ("rest", ctypes.c_char * 60),
    ]


class _Config(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("num_attributes", ctypes.c_uint),
    ]


@functools.cache
def _driver() -> ctypes.CDLL:
    """Raises Unavailable."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise Unavailable(str(error)) from error


def _check(code: int) -> None:
    if code:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(code, ctypes.byref(text))
        raise RuntimeError(f"CUDA error: {(text.value or b'').decode() or code}")


def version() -> str:
    number = ctypes.c_int()
    _check(_driver().cuDriverGetVersion(ctypes.byref(number)))
    return str(number.value)


def most_shared(index: int) -> int:
    """Returns the bytes of shared memory that a block can have."""
    device, number = ctypes.c_int(), ctypes.c_int()
    _check(_driver().cuDeviceGet(ctypes.byref(device), index))
    _check(_driver().cuDeviceGetAttribute(ctypes.byref(number), SHARED_OF_BLOCK, device))
    return number.value


class Kernel:
    """A kernel on the current GPU. `overlaps`: the kernel may begin before the previous kernel has
    ended, and waits for that kernel's results itself.
    """

    def __init__(self, module: ctypes.c_void_p, name: str, overlaps: bool) -> None:
        self._function = ctypes.c_void_p()
        _check(_driver().cuModuleGetFunction(ctypes.byref(self._function), module, name.encode()))
        self._attributes = (_Attribute * 1)()
        self._attributes[0].id, self._attributes[0].value = OVERLAP, 1
        self._overlaps = overlaps
        self._shared = PLAIN_SHARED

    def resident_blocks(self, threads: int, shared: int) -> int:
        """Returns the number of blocks that a multiprocessor can hold, or 0 if even one is too
        large.
        """
        if shared > self._shared:
            if _driver().cuFuncSetAttribute(self._function, MAX_SHARED, shared):
                return 0
            self._shared = shared
        number = ctypes.c_int()
        _check(
            _driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(
                ctypes.byref(number), self._function, threads, ctypes.c_size_t(shared)
            )
        )
        return number.value

    def launch(
        self,
        grid: tuple[int, int],
        threads: int,
        shared: int,
        params: ctypes.Structure,
        stream: int,
    ) -> None:
        """Launch the kernel on a stream of the current GPU."""
        config = _Config(
            *grid, 1, threads, 1, 1, shared, stream, self._attributes, int(self._overlaps)
        )
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(params))
        _check(_driver().cuLaunchKernelEx(ctypes.byref(config), self._function, arguments, None))


def load(code: bytes, *names: str, overlaps: bool) -> list[Kernel]:
    """Returns the kernels of a module on the current GPU, whose context torch has created. The
    module stays loaded until the process ends. Raises Unavailable.
    """
    module = ctypes.c_void_p()
    code_ = _driver().cuModuleLoadData(ctypes.byref(module), code)
    if code_:
        raise Unavailable(f"the driver can't load the compiled kernels: error {code_}")
    return [Kernel(module, name, overlaps) for name in names]
