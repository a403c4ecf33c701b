"""The project's switchyard/server/conf.py, over the real backend, slowed down."""

import switchyard.engine.models.opening
from switchyard.server.conf import *  # noqa: F403
from tests.faults.slowed import make_backend

switchyard.engine.models.opening.make_backend = make_backend
