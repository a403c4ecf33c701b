"""Is there a GPU? Without torch, whose import takes seconds."""

import ctypes
import os


def has_gpu() -> bool:
    """Asked of NVIDIA's management library: once CUDA itself has been asked, no fork of this
    process could use it any more.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return False
    number = ctypes.c_uint()
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    if nvml.nvmlInit_v2():
        return False
    failed = nvml.nvmlDeviceGetCount_v2(ctypes.byref(number))
    nvml.nvmlShutdown()
    return not failed and number.value > 0
