"""tests/faults/scripted_conf.py with little patience for heads, and a line for each request."""

from switchyard.server import worker
from tests.faults.scripted_conf import *  # noqa: F403

worker.HEAD_TIMEOUT = 1.0


def pre_request(worker, req):
    print(f"begins {req.uri}", flush=True)
