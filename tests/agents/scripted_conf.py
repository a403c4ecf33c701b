"""The project's switchyard/server/conf.py, over the real generator and cache, whose model writes
what a script says: `tests.agents.script`.
"""

import switchyard.engine.models.opening
from switchyard.server.conf import *  # noqa: F403
from tests.agents.script import make_backend

switchyard.engine.models.opening.make_backend = make_backend
