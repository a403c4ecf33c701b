"""One model as the application sees it. Called on request threads; `deliver` on the link's."""

import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Literal

from switchyard.engine.config import ModelConfig
from switchyard.engine.errors import (
    BatchFailed,
    Closed,
    Dead,
    Draining,
    EngineError,
    Full,
    InvalidJob,
    Loading,
    PromptTooLong,
    Stalled,
)
from switchyard.engine.grammar.grammars import Grammars
from switchyard.engine.held import Held, JobState
from switchyard.engine.links.base import Deliver, Link
from switchyard.engine.messages import (
    Abandon,
    Cancel,
    Chunk,
    Constraint,
    Event,
    Failed,
    Finished,
    Hanging,
    Job,
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
from switchyard.engine.stream import Stream

logger = logging.getLogger(__name__)

RETRY_LOADING = 5.0  # seconds: a model takes from seconds to minutes
MAX_RETRY_AFTER = 120.0  # seconds: OpenAI's clients don't retry at all if told a longer time
RETRY_STARTED = 10.0  # seconds: another process must start first, and load

Batches = dict[Stream, tuple[JobEvent, ...]]  # a list would take two pieces of memory a token
Trouble = Literal["recovering", "hanging"]
State = Literal["loading", "ready", "draining", "stopped"] | Trouble


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
            return [held.tell(places.get(i), self._info) for i, held in self._held.items()]

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
            raise refusal or Loading(f"model {self.config.name} is loading", RETRY_LOADING)
        return self._info

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
        info = self.info
        room = min(info.max_seq_len, info.num_pages * info.page_size) - prompt_tokens
        room -= info.num_draft_tokens
        wanted = max(min(self.config.default_max_tokens, room), 1) if asked is None else asked
        if wanted > room:
            guesses = f", less {info.num_draft_tokens} for guesses" * bool(info.num_draft_tokens)
            raise PromptTooLong(
                f"{prompt_tokens} prompt tokens and {wanted} new tokens are more than the model's"
                f" context of {info.max_seq_len} tokens, or the cache of"
                f" {info.num_pages} pages of {info.page_size}{guesses}",
                "prompt" if room < 1 or asked is None else "max_new_tokens",
            )
        return wanted

    def submit(self, jobs: Sequence[Job], wake: Callable[[], None] | None = None) -> Stream:
        """Take all of `jobs`, or none: raises Refused or Rejected. Close the stream in the end.
        `wake` is the stream's.
        """
        for job in jobs:
            self._check(job)
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

    def _check(self, job: Job) -> None:
        """Raises Rejected for what would fail, or hurt others, in the generator."""
        info = self.info
        if not job.prompt:
            raise InvalidJob("the prompt is empty", "prompt")
        for name, token_ids in _token_ids(job):
            if token_ids and not 0 <= min(token_ids) <= max(token_ids) < info.vocab_size:
                raise InvalidJob(
                    f"{name} has a token id outside the vocabulary of {info.vocab_size}", name
                )
        if job.priority > self.config.max_priority:
            raise InvalidJob(
                f"priority {job.priority} is above the highest of this server,"
                f" {self.config.max_priority}",
                "priority",
            )
        for name in ("num_logprobs", "prompt_logprobs"):
            if not 0 <= (getattr(job, name) or 0) <= info.vocab_size:
                raise InvalidJob(f"{name} must be from 0 to {info.vocab_size}", name)
        if job.max_new_tokens < (job.prompt_logprobs is None):
            raise InvalidJob("at least one new token must be asked for", "max_new_tokens")
        if job.min_new_tokens > job.max_new_tokens:
            raise InvalidJob(
                f"min_tokens {job.min_new_tokens} is more than the {job.max_new_tokens} new tokens",
                "min_new_tokens",
            )
        self.max_new_tokens(len(job.prompt), job.max_new_tokens)
        if job.healing is not None and (job.num_logprobs, job.prompt_logprobs) != (None, None):
            raise InvalidJob(
                "logprobs can't be told beside token healing: a token of the prompt is taken back",
                "healing",
            )
        if job.negative_prompt:
            self._check_pair(job, info)
        if job.constraint is not None:
            self._check_constraint(job, job.constraint)
        if job.forced is not None and not all(
            0 <= token_id < info.vocab_size for token_id in job.forced.token_ids
        ):
            raise InvalidJob("a forced token is outside the vocabulary", "forced")

    def _check_constraint(self, job: Job, constraint: Constraint) -> None:
        for name, is_given in (
            ("ignore_eos", job.ignore_eos),
            ("min_new_tokens", job.min_new_tokens > 0),
            ("healing", job.healing is not None),  # its first token is part of the prompt's text
        ):
            if is_given:
                raise InvalidJob(
                    "the completion ends where its constraint is complete: there can't be a"
                    " constraint and this",
                    name,
                )
        self.check_constraint(constraint)

    def _check_pair(self, job: Job, info: ModelInfo) -> None:
        try:
            self.max_new_tokens(len(job.negative_prompt), job.max_new_tokens)
        except PromptTooLong as error:
            raise PromptTooLong(f"negative_prompt: {error}", "negative_prompt") from None
        num_pages = job.num_pages(info.page_size, info.num_draft_tokens)
        if num_pages > info.num_pages or job.num_sequences > self.config.max_batch_size:
            raise InvalidJob(
                f"with a negative prompt the job needs {num_pages} pages of {info.num_pages}, and 2"
                f" places of {self.config.max_batch_size} in the batch",
                "negative_prompt",
            )
        if job.prompt_logprobs is not None:
            raise InvalidJob("a prompt can't be scored beside a negative one", "negative_prompt")

    def _ask_pending(self, timeout: float) -> bool:
        """Which jobs wait; whether there is an answer. Under the lock, which it lets go."""
        serial = next(self._serials)
        self._link.send(ListPending(serial))
        return self._changed.wait_for(lambda: self._has_answer(serial), timeout)

    def _has_answer(self, serial: int) -> bool:
        return self._pending_list.serial >= serial or self._state == "stopped"

    def _refusal(self, num_jobs: int = 0, prompt_tokens: int = 0) -> EngineError | None:
        """A fresh error, if the engine doesn't take so many jobs and tokens now. Under the lock."""
        name = self.config.name
        match self._state:
            case "loading":
                return Loading(f"model {name} is loading", RETRY_LOADING)
            case "draining":
                return Draining(f"model {name} is shutting down", RETRY_STARTED)
            case "stopped":
                return self._dead()
        if self._trouble == "hanging":
            return Stalled(f"model {name}: {self._error}", RETRY_STARTED)
        if len(self._held) + num_jobs > self.config.max_jobs:
            message = f"{len(self._held)} jobs are active or wait, of {self.config.max_jobs}"
            return Full(message, self._retry_after(num_jobs))
        limit = self.config.max_pending_tokens
        waiting = sum(len(h.job.prompt) for h in self._held.values() if h.state == "pending")
        if waiting and waiting + prompt_tokens > limit:
            message = f"{waiting} prompt tokens wait, of {limit}"
            return Full(message, self._retry_after(num_jobs))
        return None

    def _retry_after(self, num_jobs: int) -> float:
        """Seconds until the jobs that wait, and as many more, should have ended."""
        num_waiting = sum(held.state == "pending" for held in self._held.values())
        seconds = self._rate.seconds(num_waiting + num_jobs, time.monotonic())
        return min(max(seconds, 1.0), MAX_RETRY_AFTER)

    def _pass_on(self, event: JobEvent, batches: Batches) -> None:
        held = self._held.get(event.identifier)
        if held is not None:
            held.note(event)
            _add(batches, held.stream, event)

    def _end_all(self, batches: Batches) -> None:
        """No job will be told anything any more. One that never began can go elsewhere."""
        for identifier, held in self._held.items():
            if self._error is None:
                error: EngineError = Closed(_stopped(None))
            elif held.state == "pending":
                error = self._refusal() or self._dead()
            else:
                error = BatchFailed(str(self._error))
            _add(batches, held.stream, Failed(identifier, error))
        self._held.clear()

    def _dead(self) -> Dead:
        return Dead(f"model {self.config.name}: {_stopped(self._error)}", RETRY_STARTED)

    def _cancel(self, identifier: str) -> None:
        self._link.send(Cancel(identifier))


def _add(batches: Batches, stream: Stream, event: JobEvent) -> None:
    batches[stream] = (*batches.get(stream, ()), event)


def _token_ids(job: Job) -> Iterator[tuple[str, Collection[int]]]:
    """By the parameters that they come from."""
    sampling = job.sampling
    yield "prompt", job.prompt
    yield "negative_prompt", job.negative_prompt
    yield "stop_token_ids", job.stop_token_ids
    yield "logit_bias", [token_id for token_id, _ in sampling.logit_bias]
    yield "banned_token_ids", sampling.banned_token_ids
    yield "allowed_token_ids", sampling.allowed_token_ids


def _stopped(error: EngineError | None) -> str:
    return "the server has shut down" if error is None else str(error)
