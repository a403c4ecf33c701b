"""The project's switchyard/server/conf.py, over a scripted backend."""

import switchyard.engine.models.opening
from switchyard.server.conf import *  # noqa: F403
from tests.faults.paced import make_backend

switchyard.engine.models.opening.make_backend = make_backend
