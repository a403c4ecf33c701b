"""The project's switchyard/server/conf.py, over the backend of `link.py`."""

import os

import switchyard.engine.models.opening
from benchmarks.link import make_backend
from switchyard.server.conf import *  # noqa: F403

switchyard.engine.models.opening.make_backend = make_backend

if os.environ.get("LINK_IS_BARE"):  # to measure the replicas' link above the process link
    switchyard.engine.models.opening.ReplicaLink = lambda _, makers, deliver: makers[0][1](deliver)
