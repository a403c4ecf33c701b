"""The constraint of one job, as masks of tokens. Engine thread, except its pool."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from llguidance import LLMatcher

from switchyard.engine.backends.sampling.forcing import TextWatch
from switchyard.engine.backends.sampling.rules import Among, Without
from switchyard.engine.grammar.grammars import PANICS, Grammars, check_matcher
from switchyard.engine.job import Constraint

# Seconds that a batch waits for a job's mask. `Grammars` bounds the work for one; this bound is for
# an overloaded machine.
MASK_TIMEOUT = 2.0
MASK_THREADS = 4  # for each model
NOTE_AFTER = 0.001  # seconds of a core, the time of some dozens of masks


def start_masks(name: str) -> ThreadPoolExecutor:
    """The pool of a model, with all threads started: none is left for a job to start."""
    pool = ThreadPoolExecutor(MASK_THREADS, f"masks-{name}")
    barrier = threading.Barrier(MASK_THREADS)
    list(pool.map(lambda _: barrier.wait(), range(MASK_THREADS)))
    return pool


class Matcher:
    """The masks of one job. A pool computes each mask, where llguidance releases the GIL, while the
    model computes the logits for it.

    Until `after` has come, all tokens are allowed except end tokens, and tokens that contain the
    end of `after` and more.
    """

    def __init__(
        self,
        constraint: Constraint,
        grammars: Grammars,
        pool: ThreadPoolExecutor,
        ends: Sequence[int] = (),
    ) -> None:
        """`ends`: end tokens of the job beside those of the model."""
        self.is_done = False  # complete: no token may follow
        self._constraint = constraint
        self._grammars = grammars
        self._pool = pool
        self._ends = ends
        self._watch = TextWatch(constraint.after)
        self._overshooting: dict[int, list[int]] = {}
        self._matcher: LLMatcher | None = None
        self._seconds = 0.0  # core time for masks, not yet noted
        self._allowed: Future[torch.Tensor] = pool.submit(self._begin)

    @property
    def is_ready(self) -> bool:
        """Whether the next mask is ready."""
        return self._allowed.done()

    def wait(self) -> None:
        """Wait for the mask. Raises its error."""
        self._allowed.result(MASK_TIMEOUT)

    def limit(self) -> Among | Without:
        allowed = self._allowed.result(MASK_TIMEOUT)
        if self._watch.has_come:
            return Among(allowed)
        begun = [i for n in self._watch.begun for i in self._overshooting.get(n, [])]
        return Without([*self._grammars.tokenizer.eos_tokens, *self._ends, *begun])

    def accept(self, token_id: int) -> None:
        """Take the next token, not an end token. Raises ArithmeticError for a token that was not
        allowed, InvalidJob if the constraint gets too large.
        """
        if not self._watch.has_come:
            self._watch.add(self._grammars.pieces[token_id])
            return
        allowed = self._allowed.result(MASK_TIMEOUT)
        assert self._matcher is not None
        with PANICS:
            is_taken = self._matcher.consume_token(token_id)
        if not is_taken:
            if allowed[token_id // 8] >> token_id % 8 & 1:  # allowed, at the cost of too many steps
                check_matcher(self._matcher)
            raise ArithmeticError(f"token {token_id} breaks the constraint")
        self.is_done = self._matcher.is_stopped()
        if not self.is_done:
            self._allowed = self._pool.submit(self._compute)

    # Threads of the pool

    def _begin(self) -> torch.Tensor:
        if not self._watch.has_come:
            self._overshooting = self._grammars.overshooting(self._constraint.after)
        self._matcher = self._grammars.matcher(self._constraint.grammar)
        return self._compute()

    def _compute(self) -> torch.Tensor:
        assert self._matcher is not None
        begin = time.thread_time()
        with PANICS:
            bits = self._matcher.compute_bitmask()
        self._seconds += time.thread_time() - begin
        if self._seconds > NOTE_AFTER:
            self._grammars.note_use(self._constraint.grammar, self._seconds)
            self._seconds = 0.0
        check_matcher(self._matcher)
        mask = bytearray(bits)
        if self._ends and any(_has(mask, end) for end in self._grammars.tokenizer.eos_tokens):
            for end in self._ends:
                mask[end // 8] |= 1 << end % 8
        return torch.frombuffer(mask, dtype=torch.uint8)


def _has(mask: bytearray, token_id: int) -> bool:
    return bool(mask[token_id // 8] >> token_id % 8 & 1)
