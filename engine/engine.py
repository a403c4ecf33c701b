"""One model from the application's point of view. Methods are called on request threads, except for
`deliver`, which the link's threads call.
"""

import threading
import time
from collections.abc import Callable, Sequence

from switchyard.engine.config import ModelConfig
from switchyard.engine.errors import EngineError, InvalidJob
from switchyard.engine.grammar.grammars import Grammars
from switchyard.engine.held import Batches, HeldJobs
from switchyard.engine.job import Constraint, Job
from switchyard.engine.links.base import Deliver, Link
from switchyard.engine.messages import (
    Abandon,
    Cancel,
    Chunk,
    Event,
    Hanging,
    JobList,
    JobState,
    ModelInfo,
    PendingList,
    Phase,
    Queued,
    Stop,
    Stopped,
    Submit,
    ThreadEvent,
)
from switchyard.engine.model.model_dir import ModelDir
from switchyard.engine.model.tokenizer import Tokenizer
from switchyard.engine.schedule import admission
from switchyard.engine.schedule.admission import State
from switchyard.engine.schedule.places import QueuePlaces
from switchyard.engine.standing import Standing
from switchyard.engine.stream import OnUse, Stream

MAX_TOLD = 65_536  # tokens of a text that can be tokenized with any model


class Engine:
    """Takes jobs up to a limit, and routes each event to its job's stream."""

    def __init__(self, config: ModelConfig, make_link: Callable[[Deliver], Link]) -> None:
        """Reads the tokenizer. `start` later loads the weights. Raises ModelError."""
        self.config = config
        self._read()
        self._grammars: Grammars | None = None
        self._making = threading.Lock()  # guards the tokenizer and the grammars
        self._link = make_link(self.deliver)
        self._changed = threading.Condition()  # guards the attributes below, notified of changes
        self._standing = Standing(config.name)
        self._held = HeldJobs()
        self._places = QueuePlaces(self._changed, lambda command: self._link.send(command))
        self._on_stopped: list[Callable[[Engine], None]] = []
        self.is_started = False
        self.about: object = None  # the application's data about the model

    # Any thread

    @property
    def state(self) -> State:
        """While the engine is "recovering" from a failure of the generator, jobs are accepted, but
        wait.
        """
        return self._standing.state

    @property
    def error(self) -> EngineError | None:
        """The cause of a recovery, a hang, a reload, or the end of the engine."""
        return self._standing.error

    @property
    def progress(self) -> float | None:
        """The progress of loading, from 0 to 1, or None while it is unknown."""
        return self._standing.progress

    @property
    def grammars(self) -> Grammars:
        """The model's grammars, which are created on first use. Creating them holds the GIL for up
        to 0.5 s.
        """
        with self._making:
            self._grammars = self._grammars or Grammars(self.tokenizer)
        return self._grammars

    @property
    def num_jobs(self) -> int:
        """The number of active and pending jobs."""
        return len(self._held)

    @property
    def standing(self) -> Standing:
        """The state that the engine thread has reported. Callers must not change it."""
        return self._standing

    def jobs(self, timeout: float = 1.0) -> list[JobState]:
        """The jobs that have not ended. Unless `timeout` is 0, a shared engine's list includes the
        jobs of other servers. The engine thread reports those jobs and the queue positions; both
        are missing if it doesn't reply within `timeout` seconds.
        """
        with self._changed:
            places = self._places.ask(timeout) if self._held.backlog.num_waiting else {}
            all_jobs = self._places.ask_jobs(timeout) if self.config.at and timeout else ()
            others = [one for one in all_jobs if one.identifier not in self._held]
            return self._held.tell(places, self._standing.info) + others

    def queued(self, identifier: str, max_age: float, timeout: float = 0.25) -> Queued | None:
        """Returns a waiting job's position in the queue, from a reply at most `max_age` seconds
        old. Returns None if the job isn't waiting, or if the engine thread doesn't reply within
        `timeout` seconds. The engine thread is asked at most once every `max_age` seconds.
        """
        with self._changed:
            if (job := self._held.pending(identifier)) is None:
                return None
            self._places.renew(max_age, timeout)
            place = self._places.of(identifier)
            return None if place is None else Queued(identifier, place, len(job.prompt))

    @property
    def info(self) -> ModelInfo:
        """Raises Refused before the model is loaded."""
        info = self._standing.info
        if info is None:
            raise self._refusal() or admission.loading(self.config.name)
        return info

    @property
    def context(self) -> int:
        """The maximum number of tokens in the prompt and the completion together. Before the model
        is loaded, this is an estimate from its files.
        """
        if self._standing.info is not None:
            return self._standing.info.max_seq_len
        return self.config.max_seq_len or self.model_dir.max_seq_len or 0

    @property
    def max_told(self) -> int:
        """The maximum number of tokens in a text to tokenize or detokenize without generation. This
        number exceeds the context, so that a count can show by how much a prompt is too long. It is
        limited because a million tokens would take too much memory.
        """
        return max(2 * self.context, MAX_TOLD)

    def start(self) -> None:
        self.is_started = True
        self._standing.begin_load()
        self._link.start()

    def on_stopped(self, call: Callable[["Engine"], None]) -> None:
        """Register `call`, to be called as soon as no job can ever run here again, for whatever
        reason. `call` must not block.
        """
        self._on_stopped.append(call)

    def wait_until_loaded(self, timeout: float | None = None) -> bool:
        """Returns whether the model is ready within `timeout` seconds. Returns False at once if
        loading failed.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._standing.is_loading, timeout)
            return self._standing.is_ready

    def check_room(self, num_jobs: int, prompt_tokens: int = 0) -> None:
        """Raises the error that `submit` would raise for `num_jobs` jobs whose prompts have at
        least `prompt_tokens` tokens in total. Call this before creating the jobs. Takes no lock.
        """
        admission.check_number(num_jobs, self._standing.max_jobs(self.config))
        if (refusal := self._refusal(num_jobs, prompt_tokens)) is not None:
            raise refusal

    def max_new_tokens(self, prompt_tokens: int, asked: int | None) -> int:
        """Returns the number of new tokens for a prompt of `prompt_tokens` tokens. This is `asked`
        or, without it, the default, limited by the context. Raises PromptTooLong, which contains
        the numbers, if the tokens don't fit.
        """
        return admission.max_new_tokens(prompt_tokens, asked, self.info, self.config)

    @property
    def max_tokens(self) -> int:
        """The maximum number of tokens in a job's prompt and completion together. Raises Refused
        before the model is loaded.
        """
        return admission.most_tokens(self.info)

    def submit(
        self,
        jobs: Sequence[Job],
        wake: Callable[[], None] | None = None,
        on_use: OnUse | None = None,
    ) -> Stream:
        """Accept all of `jobs`, or accept none and raise Refused or Rejected. The caller must close
        the stream.
        """
        for job in jobs:
            admission.check(job, self.info, self.config)
            if job.constraint is not None:
                self.check_constraint(job.constraint)
        prompt_tokens = sum(job.num_prompt_tokens for job in jobs)
        if (refusal := self._refusal(len(jobs), prompt_tokens)) is not None:
            raise refusal  # most are refused here, without the lock
        stream = Stream([job.identifier for job in jobs], self._cancel, wake, on_use)
        with self._changed:
            if (refusal := self._refusal(len(jobs), prompt_tokens)) is not None:
                raise refusal
            for job in jobs:
                if job.identifier in self._held:
                    raise InvalidJob(f"identifier {job.identifier} is in use", "identifier")
            now = time.monotonic()
            # Under the lock: `Abandon` must follow the jobs it ends.
            for job in self._held.add(jobs, stream, now):
                self._link.send(Submit(job, now))
        return stream

    def check_constraint(self, constraint: Constraint) -> None:
        """Raises InvalidJob for a constraint that can't be enforced."""
        self.grammars.matcher(constraint.grammar)

    def cancel(self, identifier: str) -> bool:
        """End a job early. Its stream gets the text so far, with finish_reason "cancelled". Returns
        whether the job exists, or may exist on another server.
        """
        with self._changed:
            if identifier not in self._held and not self.config.at:
                return False
        self._cancel(identifier)
        return True

    def drain(self) -> None:
        """Stop accepting jobs. Returns at once."""
        with self._changed:
            self._standing.drain()
            self._changed.notify_all()

    def close(self, drain: float = 0.0, timeout: float | None = None) -> bool:
        """Accept no more jobs, let running jobs continue for `drain` seconds, then end them and
        release the model. Returns whether all this was done within `timeout` more seconds.
        """
        deadline = time.monotonic() + drain
        self.drain()
        with self._changed:
            is_done = self._changed.wait_for(lambda: not self._held, deadline - time.monotonic())
        if not is_done:  # not left to the engine thread, which may be stuck in a step
            self.deliver([Stopped(None)])
        self._link.send(Stop())
        return self._link.join(timeout)

    # Link's thread

    def deliver(self, events: Sequence[Event]) -> None:
        """Route events to their streams. Never blocks. Drops events of jobs that have ended, and
        all events after `Stopped`.
        """
        batches: Batches = {}
        is_end, spent = False, list[str]()  # `spent`: jobs that may get no more tokens
        with self._changed:
            for event in events if not self._standing.is_stopped else ():
                if not isinstance(event, Chunk) and isinstance(event, ThreadEvent):
                    self._note(event, batches)
                    is_end |= isinstance(event, Stopped)
                elif self._held.pass_on(event, batches):
                    spent.append(event.identifier)
            if not self._held:
                self._changed.notify_all()
        for stream, batch in batches.items():
            stream.put(batch)
        for identifier in spent:
            self._cancel(identifier)
        # After all puts: a wake is costly, and one is enough for a thread that reads many streams.
        for wake in {stream.wake for stream in batches}:
            if wake is not None:
                wake()
        for call in self._on_stopped if is_end else ():
            call(self)

    # Inside

    def _read(self) -> None:
        self.model_dir = ModelDir.read(self.config.path)
        self.tokenizer = Tokenizer(self.model_dir)

    def _note(self, event: ThreadEvent, batches: Batches) -> None:
        """Record an event that concerns the engine thread itself. The caller must hold the lock."""
        if isinstance(event, PendingList | JobList):
            self._places.note(event)
        elif self._standing.note(event):
            self._held.fail_all(self._end, batches)
        if isinstance(event, Hanging):
            self._link.send(Abandon())
        if isinstance(event, Stopped):
            self._places.end()
        self._changed.notify_all()

    def _refusal(self, num_jobs: int = 0, prompt_tokens: int = 0) -> EngineError | None:
        """Can be called on any thread. Takes no lock, so that many refusals don't delay
        `deliver`.
        """
        return admission.refusal(
            self._standing,
            self._held.backlog,
            self._held.rate,
            self.config,
            time.monotonic(),
            num_jobs,
            prompt_tokens,
        )

    def _end(self, phase: Phase) -> EngineError:
        return admission.end(phase, self.state, self.error, self.config.name)

    def _cancel(self, identifier: str) -> None:
        self._link.send(Cancel(identifier))
