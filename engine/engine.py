"""One model as the application sees it. Called on request threads; `deliver` on the link's."""

import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence

from switchyard.engine.config import ModelConfig
from switchyard.engine.errors import (
    BatchFailed,
    Closed,
    EngineError,
    InvalidJob,
    Loading,
)
from switchyard.engine.grammar.grammars import Grammars
from switchyard.engine.held import Held, JobState
from switchyard.engine.job import Constraint, Job
from switchyard.engine.links.base import Deliver, Link
from switchyard.engine.messages import (
    Abandon,
    Cancel,
    Chunk,
    Event,
    Failed,
    Finished,
    Hanging,
    JobEvent,
    ListPending,
    Loaded,
    LoadProgress,
    ModelInfo,
    PendingList,
    Queued,
    Recovered,
    Recovering,
    Restarting,
    Stop,
    Stopped,
    Submit,
    Zombies,
)
from switchyard.engine.model.model_dir import ModelDir
from switchyard.engine.model.tokenizer import Tokenizer
from switchyard.engine.rate import CompletionRate
from switchyard.engine.schedule import admission
from switchyard.engine.schedule.admission import State, Trouble
from switchyard.engine.stream import Stream

logger = logging.getLogger(__name__)

MAX_TOLD = 65_536  # tokens of a text that any model takes apart

Batches = dict[Stream, tuple[JobEvent, ...]]  # a list would take two pieces of memory a token


class Engine:
    """Takes jobs up to a limit and routes every event, by its identifier, to who waits for it."""

    def __init__(
        self,
        config: ModelConfig,
        make_link: Callable[[Deliver], Link],
        grammars: Grammars | None = None,
    ) -> None:
        """Reads the tokenizer, not the weights: `start` does. `grammars`: what the link's backend
        has, so that nothing is compiled twice. Raises ModelError.
        """
        self.config = config
        self.model_dir = ModelDir.read(config.path)
        self.tokenizer = Tokenizer(self.model_dir)
        self._grammars = grammars or Grammars(self.tokenizer)
        self._link = make_link(self.deliver)
        self._changed = threading.Condition()  # guards all below; notified when one of them changes
        self._state: State = "loading"
        self._trouble: Trouble | None = None
        self._info: ModelInfo | None = None
        self._progress: float | None = None
        self._error: EngineError | None = None
        self._held: dict[str, Held] = {}  # jobs that have not ended
        self._num_zombies = 0
        self._rate = CompletionRate()
        self._serials = itertools.count(1)  # of questions which jobs wait
        self._pending_list = PendingList(0, ())  # the newest answer
        self._asked = -math.inf  # when `queued` has asked last
        self._on_stopped: list[Callable[[Engine], None]] = []

    # Any thread

    @property
    def state(self) -> State:
        """While it recovers from a failure of the generator, it takes jobs; they wait."""
        return self._trouble if self._state == "ready" and self._trouble else self._state

    @property
    def error(self) -> EngineError | None:
        """From what it recovers, where it hangs, why it loads once more, or why it has stopped,
        unless it was told to.
        """
        return self._error

    @property
    def progress(self) -> float | None:
        """Of a load, from 0 to 1. None where nothing is known of it."""
        return self._progress if self._state == "loading" else None

    @property
    def num_jobs(self) -> int:
        """Jobs that have not ended, active or pending."""
        return len(self._held)

    @property
    def num_zombies(self) -> int:
        """Jobs so far that the generator and this engine did not agree on. They were ended."""
        return self._num_zombies

    def jobs(self, timeout: float = 1.0) -> list[JobState]:
        """What has become of the jobs that have not ended. Places in the queue are asked of the
        engine thread, and None if it doesn't answer within `timeout` seconds.
        """
        places: dict[str, int] = {}
        with self._changed:
            waits = any(held.state == "pending" for held in self._held.values())
            if waits and self._ask_pending(timeout):
                identifiers = self._pending_list.identifiers
                places = {identifier: i for i, identifier in enumerate(identifiers, 1)}
            now = time.monotonic()
            return [held.tell(places.get(i), self._info, now) for i, held in self._held.items()]

    def queued(self, identifier: str, max_age: float, timeout: float = 0.25) -> Queued | None:
        """Where a job stands among those that wait, as of `max_age` seconds ago at the most; None
        if it doesn't wait, or the engine thread doesn't answer within `timeout` seconds. However
        many ask, that thread is asked once in `max_age` seconds.
        """
        with self._changed:
            held = self._held.get(identifier)
            if held is None or held.state != "pending":
                return None
            now = time.monotonic()
            if now - self._asked >= max_age:
                self._asked = now
                self._ask_pending(timeout)
            if identifier not in self._pending_list.identifiers:
                return None
            place = self._pending_list.identifiers.index(identifier) + 1
            return Queued(identifier, place, len(held.job.prompt))

    @property
    def info(self) -> ModelInfo:
        """Raises Refused while there is none."""
        if self._info is None:
            with self._changed:
                refusal = self._refusal()
            raise refusal or Loading(
                f"model {self.config.name} is loading", admission.RETRY_LOADING
            )
        return self._info

    @property
    def context(self) -> int:
        """Most tokens of prompt and completion together; before it is loaded, as files have it."""
        if self._info is not None:
            return self._info.max_seq_len
        return self.config.max_seq_len or self.model_dir.max_seq_len or 0

    @property
    def max_told(self) -> int:
        """Most tokens of a text that is taken apart, or put together, and not generated from: to
        count tells how far a prompt is too long. Of a million the memory would be missed.
        """
        return max(2 * self.context, MAX_TOLD)

    def start(self) -> None:
        self._link.start()

    def on_stopped(self, call: Callable[["Engine"], None]) -> None:
        """Have `call` called once no job will ever run here again, whatever the reason. It must not
        block.
        """
        self._on_stopped.append(call)

    def wait_until_loaded(self, timeout: float | None = None) -> bool:
        """Whether the model is ready within `timeout` seconds; False at once if loading failed."""
        with self._changed:
            self._changed.wait_for(lambda: self._state != "loading", timeout)
            return self._state == "ready"

    def check_room(self, num_jobs: int, prompt_tokens: int = 0) -> None:
        """Raises what `submit` would for so many jobs, with at least so many tokens in all their
        prompts; before the work of making them.
        """
        if num_jobs > self.config.max_jobs:
            raise InvalidJob(
                f"{num_jobs} choices are more than the {self.config.max_jobs} jobs"
                " which this server holds",
                "n",
            )
        with self._changed:
            refusal = self._refusal(num_jobs, prompt_tokens)
        if refusal is not None:
            raise refusal

    def max_new_tokens(self, prompt_tokens: int, asked: int | None) -> int:
        """New tokens for a prompt of so many tokens: what was asked for, else the default as far
        as the context allows. Raises PromptTooLong, with the numbers, where they don't fit.
        """
        return admission.max_new_tokens(prompt_tokens, asked, self.info, self.config)

    def submit(self, jobs: Sequence[Job], wake: Callable[[], None] | None = None) -> Stream:
        """Take all of `jobs`, or none: raises Refused or Rejected. Close the stream in the end.
        `wake` is the stream's.
        """
        for job in jobs:
            admission.check(job, self.info, self.config)
            if job.constraint is not None:
                self.check_constraint(job.constraint)
        stream = Stream([job.identifier for job in jobs], self._cancel, wake)
        with self._changed:
            refusal = self._refusal(len(jobs), sum(len(job.prompt) for job in jobs))
            if refusal is not None:
                raise refusal
            for job in jobs:
                if job.identifier in self._held:
                    raise InvalidJob(f"identifier {job.identifier} is in use", "identifier")
            now = time.monotonic()
            if not self._held:
                self._rate.resume(now)
            self._held.update((job.identifier, Held(job, stream)) for job in jobs)
            for job in jobs:  # under the lock, so that `Abandon` comes after what it is about
                self._link.send(Submit(job, now))
        return stream

    def check_constraint(self, constraint: Constraint) -> None:
        """Raises InvalidJob for one that can't be honoured."""
        self._grammars.matcher(constraint.grammar)

    def cancel(self, identifier: str) -> bool:
        """End a job early: its reader gets what there is, finish_reason "cancelled". Whether there
        was such a job.
        """
        with self._changed:
            if identifier not in self._held:
                return False
        self._cancel(identifier)
        return True

    def drain(self) -> None:
        """Take no more jobs; returns at once."""
        with self._changed:
            if self._state in ("loading", "ready"):
                self._state = "draining"
            self._changed.notify_all()

    def close(self, drain: float = 0.0, timeout: float | None = None) -> bool:
        """Take no more jobs, let those in hand go on for `drain` seconds, then end and release.

        Whether that was done within `timeout` more seconds.
        """
        deadline = time.monotonic() + drain
        self.drain()
        with self._changed:
            is_done = self._changed.wait_for(lambda: not self._held, deadline - time.monotonic())
        if not is_done:  # not by the engine thread, which may be stuck in a step
            self.deliver([Stopped(None)])
        self._link.send(Stop())
        return self._link.join(timeout)

    # Link's thread

    def deliver(self, events: Sequence[Event]) -> None:
        """Route events to their streams. Never blocks; whose job has ended already is dropped, as
        is all that follows `Stopped`.
        """
        batches: Batches = {}
        is_end = False
        with self._changed:
            for event in events if self._state != "stopped" else ():
                match event:
                    case Chunk():  # nearly always, so it is asked for first
                        self._pass_on(event, batches)
                    case LoadProgress(share):
                        self._progress = share
                    case Loaded(info):
                        self._info = info
                        self._trouble = self._error = None
                        if self._state == "loading":
                            self._state = "ready"
                        logger.info("model %s is loaded, on %s", self.config.name, info.device)
                    case Stopped(error):
                        self._state, self._error = "stopped", error
                        if error is not None:
                            logger.error("model %s: %s", self.config.name, error)
                        self._end_all(batches)
                        is_end = True
                    case Restarting(reason):
                        self._trouble, self._error = None, BatchFailed(reason)
                        self._progress = None
                        if self._state == "ready":
                            self._state = "loading"
                        logger.error("model %s: %s; it is loaded anew", self.config.name, reason)
                        self._end_all(batches)
                    case Zombies(number):
                        self._num_zombies += number
                    case Hanging(reason):
                        self._trouble, self._error = "hanging", BatchFailed(reason)
                        logger.error("model %s: %s", self.config.name, reason)
                        self._end_all(batches)
                        self._link.send(Abandon())
                    case Recovering(reason):
                        self._trouble, self._error = "recovering", BatchFailed(reason)
                        self._changed.notify_all()
                    case Recovered():
                        self._trouble = self._error = None
                        self._changed.notify_all()
                    case PendingList():
                        self._pending_list = event
                        self._changed.notify_all()
                    case Finished(identifier) | Failed(identifier):
                        ended = self._held.pop(identifier, None)
                        if ended is not None:
                            self._rate.note(time.monotonic())
                            _add(batches, ended.stream, event)
                    case _:
                        self._pass_on(event, batches)
            if self._state != "ready" or not self._held:
                self._changed.notify_all()
        wakes = set()
        for stream, batch in batches.items():
            stream.put(batch)
            wakes.add(stream.wake)
        # After all puts: once is enough for a thread that reads many, and each wake costs.
        for wake in wakes:
            if wake is not None:
                wake()
        for call in self._on_stopped if is_end else ():
            call(self)

    # Inside

    def _ask_pending(self, timeout: float) -> bool:
        """Which jobs wait; whether there is an answer. Under the lock, which it lets go."""
        serial = next(self._serials)
        self._link.send(ListPending(serial))
        return self._changed.wait_for(lambda: self._has_answer(serial), timeout)

    def _has_answer(self, serial: int) -> bool:
        return self._pending_list.serial >= serial or self._state == "stopped"

    def _refusal(self, num_jobs: int = 0, prompt_tokens: int = 0) -> EngineError | None:
        """Under the lock."""
        return admission.refusal(
            self.state,
            self._error,
            self._held.values(),
            self._rate,
            self.config,
            time.monotonic(),
            num_jobs,
            prompt_tokens,
        )

    def _pass_on(self, event: JobEvent, batches: Batches) -> None:
        held = self._held.get(event.identifier)
        if held is not None:
            held.note(event)
            _add(batches, held.stream, event)

    def _end_all(self, batches: Batches) -> None:
        """No job will be told anything any more. One that never began can go elsewhere."""
        for identifier, held in self._held.items():
            if self._error is None:
                error: EngineError = Closed(admission.SHUT_DOWN)
            elif held.state == "pending":
                error = self._refusal() or admission.dead(self.config.name, self._error)
            else:
                error = BatchFailed(str(self._error))
            _add(batches, held.stream, Failed(identifier, error))
        self._held.clear()

    def _cancel(self, identifier: str) -> None:
        self._link.send(Cancel(identifier))


def _add(batches: Batches, stream: Stream, event: JobEvent) -> None:
    batches[stream] = (*batches.get(stream, ()), event)
