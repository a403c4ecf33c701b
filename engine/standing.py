"""The state of an engine, as its thread reports it. The engine's lock guards changes. Any thread
may read the state. A state's error is set before the state itself.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence

from switchyard.engine.config import ModelConfig
from switchyard.engine.errors import BatchFailed, EngineError
from switchyard.engine.messages import (
    Hanging,
    Loaded,
    LoadProgress,
    ModelInfo,
    Recovered,
    Recovering,
    ReplicaState,
    ReplicaStates,
    Restarting,
    Stopped,
    ThreadEvent,
    Zombies,
)
from switchyard.engine.schedule.admission import State, Trouble
from switchyard.engine.stats import Rates, Stats

logger = logging.getLogger(__name__)

RECENT = 10.0  # seconds over which rates are computed


class Standing:
    def __init__(self, name: str) -> None:
        """`name`: the model's name, for the log."""
        self.info: ModelInfo | None = None  # None: the model was never loaded
        self.error: EngineError | None = None  # the cause of a recovery, hang, reload or end
        # Jobs on which generator and engine disagreed; they were ended.
        self.num_zombies = self.num_hangs = self.num_restarts = 0
        self.load_seconds: float | None = None  # duration of the latest load
        self.replicas: tuple[ReplicaState, ...] = ()  # empty: its only thread is in this process
        self._stats: Stats | None = None  # with the counts of earlier threads
        self._before: Stats | None = None
        self._past: Past | None = None  # earlier engines of this name
        self._recent: deque[Stats] = deque()  # of the last `RECENT` seconds, and one older
        self._name = name
        self._state: State = "loading"
        self._trouble: Trouble | None = None
        self._progress: float | None = None
        self._load_begun = time.monotonic()

    @property
    def state(self) -> State:
        """While the engine is "recovering" from a failure of the generator, jobs are accepted, but
        wait.
        """
        state = self._state
        return (self._trouble or state) if state == "ready" else state

    @property
    def is_loading(self) -> bool:
        return self._state == "loading"

    @property
    def is_ready(self) -> bool:
        """Whether the model is loaded and the engine has not ended, even if it is recovering."""
        return self._state == "ready"

    @property
    def is_stopped(self) -> bool:
        return self._state == "stopped"

    @property
    def progress(self) -> float | None:
        """The progress of loading, from 0 to 1, or None while it is unknown."""
        return self._progress if self.is_loading else None

    @property
    def stats(self) -> Stats | None:
        """The counts, including the counts of this engine's earlier threads and of earlier engines
        with its name.
        """
        before = None if self._past is None else self._past.stats
        if self._stats is not None:
            return self._stats.after(before)
        return None if before is None else before.at_rest()

    def max_jobs(self, config: ModelConfig) -> int:
        """The maximum number of jobs that the engine holds. With a source, this depends on the
        engines that the source lists now.
        """
        if not config.has_source:
            return config.max_jobs
        return config.max_jobs_of(sum(one.status != "leaving" for one in self.replicas))

    def follow(self, past: "Past", other: "Standing") -> None:
        """Continue the counts of another engine with this name. That engine is ending and joins
        `past`.
        """
        past.add(other)
        self._past = past
        self.num_zombies += other.num_zombies
        self.num_hangs += other.num_hangs
        self.num_restarts += other.num_restarts

    def rates(self, now: float) -> Rates:
        """`now`: a time on the monotonic clock. Can be called on any thread."""
        recent = list(self._recent)
        first = max((i for i, each in enumerate(recent) if each.time <= now - RECENT), default=0)
        if first + 1 >= len(recent):
            return Rates()
        begin, end = recent[first], recent[-1]
        seconds = now - begin.time
        return Rates(
            (end.totals.new_tokens - begin.totals.new_tokens) / seconds,
            (end.totals.prompt_tokens - begin.totals.prompt_tokens) / seconds,
            _mean(begin, end, "iteration_seconds"),
        )

    def begin_load(self) -> None:
        self._load_begun = time.monotonic()

    def drain(self) -> None:
        if self._state in ("loading", "ready"):
            self._state = "draining"

    def note(self, event: ThreadEvent) -> bool:
        """Returns whether the event ends all jobs so far."""
        match event:
            case LoadProgress(share):
                self._progress = share
            case Loaded(info):
                self._load(info)
            case Zombies(number):
                self.num_zombies += number
            case Recovering(reason):
                self.error, self._trouble = BatchFailed(reason), "recovering"
            case Recovered():
                self._trouble = self.error = None
            case Stats():
                self._count(event)
            case ReplicaStates(states):
                self._note_replicas(states)
            case Hanging(reason):
                self.num_hangs += 1
                self.error, self._trouble = BatchFailed(reason), "hanging"
                logger.error("model %s: %s", self._name, reason)
                return True
            case Restarting(reason):
                self._restart(reason)
                return True
            case Stopped(error):
                self.error, self._state = error, "stopped"
                if error is not None:
                    logger.error("model %s: %s", self._name, error)
                return True
        return False

    def _note_replicas(self, states: tuple[ReplicaState, ...]) -> None:
        before, self.replicas = self.replicas, states
        for name in ("num_restarts", "num_hangs"):  # lower if a replica has left
            more = max(_sum_of(states, name) - _sum_of(before, name), 0)
            setattr(self, name, getattr(self, name) + more)
        left = [one for one in states if one.status != "stopped"]
        if any(one.status == "ready" for one in left):
            self._trouble = self.error = None
            return
        hangs = bool(left) and all(one.status == "hanging" for one in left)
        self._trouble = "hanging" if hangs else "recovering"
        reasons = [one.reason for one in left or states if one.reason]
        nothing = "no engine of the model is loaded" if states else "no engine"
        self.error = BatchFailed(reasons[0] if reasons else nothing)

    def _load(self, info: ModelInfo) -> None:
        before, self.info = self.info, info
        if before is not None and self._state == "ready":  # the replicas now offer something else
            logger.info("model %s: its engines now offer %s", self._name, info)
            return
        self.load_seconds = time.monotonic() - self._load_begun
        self._trouble = self.error = None
        if self.is_loading:
            self._state = "ready"
        logger.info("model %s is loaded on %s", self._name, info.device)

    def _count(self, stats: Stats) -> None:
        self._stats = stats.after(self._before)
        self._recent.append(self._stats)
        self._forget(stats.time)

    def _forget(self, now: float) -> None:
        while len(self._recent) > 1 and self._recent[1].time <= now - RECENT:
            self._recent.popleft()

    def _restart(self, reason: str) -> None:
        self.num_restarts += 1
        self._before = self._stats
        self._trouble, self.error = None, BatchFailed(reason)
        self._progress = None
        self.begin_load()
        if self.is_ready:
            self._state = "loading"
        logger.error("model %s: %s; reloading it", self._name, reason)


class Past:
    """The counts of earlier engines with the same name. Some of these engines may still be running,
    so their counts can grow. Can be used on any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards both
        self._total: Stats | None = None  # of the stopped engines
        self._standings: list[Standing] = []  # of the running engines

    def add(self, standing: Standing) -> None:
        with self._lock:
            self._standings.append(standing)
            self._add_up()

    @property
    def stats(self) -> Stats | None:
        with self._lock:
            self._add_up()
            total = self._total
            for standing in self._standings:
                total = _sum(standing, total)
            return total

    def _add_up(self) -> None:
        """Move the counts of stopped engines into the total."""
        for standing in [one for one in self._standings if one.is_stopped]:
            self._standings.remove(standing)
            self._total = _sum(standing, self._total)


def _sum_of(states: Sequence[ReplicaState], name: str) -> int:
    return sum(getattr(one, name) for one in states)


def _sum(standing: Standing, before: Stats | None) -> Stats | None:
    own = standing._stats
    return before if own is None else own.after(before)


def _mean(begin: Stats, end: Stats, name: str) -> float | None:
    """The mean of the values added between `begin` and `end`, or None if there are none."""
    if name not in begin.histograms or name not in end.histograms:
        return None
    return end.histograms[name].mean_since(begin.histograms[name])
