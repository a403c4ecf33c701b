"""A model in memory, with all that belongs to it."""

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Loaded:
    model: Any
    cache: Any
    cache_mode: str  # how it holds keys and values

    def unload(self) -> None:
        """Let go of all. The memory is free once nobody else holds any of it."""
        if self.model is not None:
            self.model.unload()
        self.model = self.cache = None
