"""tests/faults/scripted_conf.py with little patience for heads."""

from switchyard.server import worker
from tests.faults.scripted_conf import *  # noqa: F403

worker.HEAD_TIMEOUT = 1.0
