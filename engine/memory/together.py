"""Adds up the memory of models that will be loaded one after another. Loads nothing."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from switchyard.engine.config import CacheMode, ModelConfig
from switchyard.engine.memory import gpus
from switchyard.engine.memory.estimate import CONTEXT, Footprint, Memory
from switchyard.engine.memory.residency import Place, check_host, needed


class Together:
    """The memory that is free now, minus what the models that stay loaded will take."""

    def __init__(self) -> None:
        self.names: list[str] = []  # of the models that stay
        self._taken: Counter[Place] = Counter()  # bytes

    def on_gpus(
        self, config: ModelConfig, footprints: Sequence[Footprint], context: int, stays: bool
    ) -> tuple[CacheMode, int]:
        """The cache that the loader will choose, for the smallest replica. Raises ModelError."""
        found = []
        for part in gpus.shares(config):
            own = replace(config, gpus=part, replicas=1)
            there = gpus.chosen(own)
            free = [max(one.free - self._taken[i] - CONTEXT, 0) for i, one in there.items()]
            memory = Memory(own, footprints, free, context)
            found.append(memory.caches()[0])
            if stays:
                sizes = memory.place(*found[-1])
                self._taken.update({i: CONTEXT + s for i, s in zip(there, sizes, strict=True)})
        if stays:
            self.names.append(config.name)
        return min(found, key=lambda cache: cache[1])

    def on_host(self, config: ModelConfig, stays: bool) -> None:
        """Raises ModelError."""
        check_host(config, self._taken["host"])
        if stays:
            self.names.append(config.name)
            self._taken.update(needed(config))
