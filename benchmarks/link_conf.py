"""The project's switchyard/server/conf.py, over the backend of `link.py`."""

import switchyard.engine.models
from benchmarks.link import make_backend
from switchyard.server.conf import *  # noqa: F403

switchyard.engine.models.make_backend = make_backend
