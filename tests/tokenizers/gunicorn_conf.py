"""The project's switchyard/server/conf.py, over a model that writes the tokens that SAY names."""

import switchyard.engine.models.opening
from switchyard.server.conf import *  # noqa: F403
from tests.tokenizers.spoken import speaking


def make_backend(config, grammars, tell_progress):
    return speaking(config, grammars, lambda said: tuple(map(int, said.split())))


switchyard.engine.models.opening.make_backend = make_backend
