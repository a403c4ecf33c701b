"""Programs that don't outlive the process that started them."""

import os
import signal
import sys
from collections.abc import Sequence

# The comparison finds a parent that ended before prctl was called.
TETHER = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, int(sys.argv[2]));"
    " os.getppid() == int(sys.argv[1]) or os._exit(1); os.execv(sys.argv[3], sys.argv[3:])"
)


def tethered(command: Sequence[str], number: signal.Signals) -> list[str]:
    """Returns the command, wrapped so that it gets this signal when the thread that started it
    ends, even by SIGKILL.
    """
    python = [sys.executable, "-S", "-E", "-c", TETHER]
    return [*python, str(os.getpid()), str(int(number)), *command]
