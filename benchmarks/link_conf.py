"""The project's switchyard/server/conf.py, over the backend of `link.py`."""

import switchyard.engine.models.opening
from benchmarks.link import make_backend
from switchyard.server.conf import *  # noqa: F403

switchyard.engine.models.opening.make_backend = make_backend
