"""Represents a model whose files can't be read, until it can be loaded."""

import logging
from collections.abc import Callable
from pathlib import Path

from switchyard.engine.config import ModelConfig
from switchyard.engine.engine import Engine
from switchyard.engine.errors import Dead, ModelError, without_frames
from switchyard.engine.links.base import Deliver
from switchyard.engine.messages import Command, Stopped
from switchyard.engine.model.model_dir import ModelDir
from switchyard.engine.model.tokenizer import Tokenizer
from switchyard.engine.models.entry import Served

logger = logging.getLogger(__name__)


def open_if_readable(open: Callable[[Served], Engine], served: Served) -> Engine:
    """Returns the engine of a model, or an Unread if its files can't be read."""
    try:
        return open(served)
    except ModelError as error:
        logger.error("model %s: %s", served.config.name, error)
        return Unread(served.config, without_frames(error))


class Unread(Engine):
    """An engine that has only a name and settings. Its start fails with the reason."""

    def __init__(self, config: ModelConfig, reason: ModelError) -> None:
        self.reason = reason
        super().__init__(config, lambda deliver: _NoLink(deliver, reason))

    def _read(self) -> None:
        self.model_dir = ModelDir(
            path=Path(self.config.path),
            config={},
            tokenizer_config={},
            eos_token_ids=(),
            chat_templates={},
            created=0,
            fingerprint="",
        )

    @property
    def tokenizer(self) -> Tokenizer:  # type: ignore[override]
        """Raises Dead."""
        raise Dead(f"model {self.config.name}: {self.reason}")


class _NoLink:
    def __init__(self, deliver: Deliver, reason: ModelError) -> None:
        self._deliver = deliver
        self._reason = reason

    def start(self) -> None:
        self._deliver([Stopped(self._reason)])

    def send(self, command: Command) -> None:
        pass

    def join(self, timeout: float | None = None) -> bool:
        return True
