import functools

import pytest

from tests.app.anthropic.asked import URL
from tests.app.chat.conftest import chat

__all__ = ["chat"]


@pytest.fixture
def message(chat):
    """Asks for a message as `chat` does for a chat."""
    return functools.partial(chat, url=URL)
