"""An engine that delivers scripted tokens, all at once, on the calling thread."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from switchyard.app.engine_settings import DEFAULT_MODEL
from switchyard.app.exceptions import ClientGone, TimedOut
from switchyard.engine import (
    Engine,
    Failure,
    Job,
    ModelConfig,
    Stream,
)
from switchyard.engine.backends.exl.stops import StopSearch
from switchyard.engine.links.base import Deliver
from switchyard.engine.messages import (
    Chunk,
    Command,
    Event,
    Failed,
    Finished,
    FinishReason,
    ListPending,
    Loaded,
    ModelInfo,
    PendingList,
    Prefill,
    PromptLogprobs,
    Started,
    Stop,
    Stopped,
    Submit,
    TokenLogprob,
)
from switchyard.engine.stream import OnUse

Answer = str | Exception | tuple[str, Exception]  # a text, an error, or a text and then an error

PAGE = 256  # tokens
NO_ANSWER = "This is a fake without an answer for this prompt."


class Script:
    """The answers to prompts, and the prompts so far."""

    def __init__(self, answers: dict[str, Answer]) -> None:
        self.answers = answers
        self.prompts: list[str] = []

    def open(self, config: ModelConfig) -> "FakeEngine":
        """Raises ModelError."""
        return FakeEngine(config, self)

    def answer(self, prompt: str) -> Answer:
        found = [key for key in self.answers if key in prompt]
        if not found:
            return NO_ANSWER
        return self.answers[max(found, key=lambda key: (prompt.rfind(key) + len(key), len(key)))]


class FakeEngine(Engine):
    def __init__(self, config: ModelConfig, script: Script) -> None:
        """Raises ModelError for files that can't be read. The demo model's directory replaces a
        missing one.
        """
        if not os.path.isdir(config.path):
            config = replace(config, path=DEFAULT_MODEL, name=config.name)
        super().__init__(config, lambda deliver: FakeLink(self, deliver))
        self._script = script

    @classmethod
    def by(cls, script: Script) -> Callable[[ModelConfig], Engine]:
        return lambda config: cls(config, script)

    def submit(
        self,
        jobs: Sequence[Job],
        wake: Callable[[], None] | None = None,
        on_use: OnUse | None = None,
    ) -> Stream:
        for job in jobs:
            answer = self.answer(job)
            if isinstance(answer, Exception) and not isinstance(answer, Failure | TimedOut):
                self._script.prompts.append(self.prompt(job))
                raise _fresh(answer)
        return super().submit(jobs, wake, on_use)

    def prompt(self, job: Job) -> str:
        return self.tokenizer.decode(job.prompt, skip_special=False)

    def answer(self, job: Job) -> Answer:
        return self._script.answer(self.prompt(job))

    def loaded(self) -> Loaded:
        length, config = self.context or 4096, self.model_dir.config
        num_pages = -(-length // PAGE) * self.config.max_batch_size
        return Loaded(ModelInfo(length, config.get("vocab_size", 0), PAGE, num_pages, "fake"))

    def play(self, job: Job) -> list[Event]:
        """All events of the job."""
        self._script.prompts.append(self.prompt(job))
        num_prompt = len(job.prompt)
        events: list[Event] = [Started(job.identifier)]
        events.append(Prefill(job.identifier, num_prompt, num_prompt))
        answer = self.answer(job)
        if isinstance(answer, Exception):
            answer = "", answer
        text, error = (answer, None) if isinstance(answer, str) else answer
        if job.prompt_logprobs is not None:
            told = (None, *map(_certain, job.prompt[1:]))
            events.append(PromptLogprobs(job.identifier, told))
        text, stop = _stopped(text, job)
        token_ids = self.tokenizer.encode(text, 1 << 30, add_bos=False)
        taken = token_ids[: job.max_new_tokens]
        for token_id, piece in zip(taken, self._pieces(text, taken), strict=True):
            logprobs = None if job.num_logprobs is None else (_certain(token_id),)
            events.append(Chunk(job.identifier, piece, (token_id,), logprobs))
        if error is not None:
            return [*events, Failed(job.identifier, _fresh(error))]
        reason: FinishReason = "stop"
        if len(taken) < len(token_ids):
            reason, stop = "length", None
        return [*events, Finished(job.identifier, reason, num_prompt, len(taken), 0, stop)]

    def _pieces(self, text: str, token_ids: Sequence[int]) -> list[str]:
        """The text that each token adds. A character is added with the last of its tokens."""
        decoder = self.tokenizer.decoder()
        pieces = [decoder.push(token_id) for token_id in token_ids]
        if pieces and pieces[0].startswith(" ") and not text.startswith(" "):
            pieces[0] = pieces[0][1:]  # some tokenizers put a space before a text
        return pieces


class FakeLink:
    def __init__(self, engine: FakeEngine, deliver: Deliver) -> None:
        self._engine = engine
        self._deliver = deliver

    def start(self) -> None:
        self._deliver([self._engine.loaded()])

    def send(self, command: Command) -> None:
        match command:
            case Submit(job):
                self._deliver(self._engine.play(job))
            case ListPending(serial):
                self._deliver([PendingList(serial, ())])
            case Stop():
                self._deliver([Stopped(None)])

    def join(self, timeout: float | None = None) -> bool:
        return True


def _fresh(error: Exception) -> Any:
    """Returns an equal exception, because the traceback of an instance grows each time it is
    raised.
    """
    if isinstance(error, ClientGone):
        return ClientGone()
    new = type(error).__new__(type(error), *error.args)  # `__init__` may take other arguments
    new.__dict__.update(error.__dict__)
    return new


def _stopped(text: str, job: Job) -> tuple[str, str | int | None]:
    """Returns the text up to the stop string that begins first in it, and that stop string."""
    search = StopSearch(job)
    if search.is_needed:
        text, _ = search.add(text, [], is_free=False, is_last=True)
    return text, search.stop


def _certain(token_id: int) -> TokenLogprob:
    return TokenLogprob(token_id, 0.0)
