"""The constraint of one job: which tokens may come next. Engine thread, but for the pool."""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from llguidance import LLMatcher

from switchyard.engine.backends.sampling.forcing import TextWatch
from switchyard.engine.backends.sampling.rules import Among, Without
from switchyard.engine.grammar.grammars import PANICS, Grammars, check_matcher
from switchyard.engine.job import Constraint

# Seconds that a batch waits for a job's mask. `Grammars` bounds what one takes; this is for a
# machine that is far too busy.
MASK_TIMEOUT = 2.0
MASK_THREADS = 4  # of one model
NOTE_AFTER = 0.001  # seconds of a core: some dozens of masks


def start_masks(name: str) -> ThreadPoolExecutor:
    """The pool of a model, with all of its threads: none is left for a job to start."""
    pool = ThreadPoolExecutor(MASK_THREADS, f"masks-{name}")
    barrier = threading.Barrier(MASK_THREADS)
    list(pool.map(lambda _: barrier.wait(), range(MASK_THREADS)))
    return pool


class Matcher:
    """Masks of one job. Each is computed in a pool, where llguidance releases the GIL, while the
    model computes the logits that it is for.

    Until `after` has come everything may, but an end, and tokens that begin in that text and end
    behind it.
    """

    def __init__(
        self, constraint: Constraint, grammars: Grammars, pool: ThreadPoolExecutor
    ) -> None:
        self.is_done = False  # complete, and nothing may follow
        self._constraint = constraint
        self._grammars = grammars
        self._pool = pool
        self._watch = TextWatch(constraint.after)
        self._overshooting: dict[int, list[int]] = {}
        self._matcher: LLMatcher | None = None
        self._seconds = 0.0  # of a core, for masks, since that was noted
        self._allowed: Future[torch.Tensor] = pool.submit(self._begin)

    @property
    def is_ready(self) -> bool:
        """Whether the next mask can be had at once."""
        return self._allowed.done()

    def wait(self) -> None:
        """Raises whatever came in the way of the mask."""
        self._allowed.result(MASK_TIMEOUT)

    def limit(self) -> Among | Without:
        allowed = self._allowed.result(MASK_TIMEOUT)
        if self._watch.has_come:
            return Among(allowed)
        begun = [i for n in self._watch.begun for i in self._overshooting.get(n, [])]
        return Without([*self._grammars.tokenizer.eos_tokens, *begun])

    def accept(self, token_id: int) -> None:
        """The next token, which is no end. Raises ArithmeticError if it wasn't allowed, InvalidJob
        where the constraint gets too large.
        """
        if not self._watch.has_come:
            self._watch.add(self._grammars.pieces[token_id])
            return
        allowed = self._allowed.result(MASK_TIMEOUT)
        assert self._matcher is not None
        with PANICS:
            is_taken = self._matcher.consume_token(token_id)
        if not is_taken:
            if allowed[token_id // 8] >> token_id % 8 & 1:  # but takes too many steps
                check_matcher(self._matcher)
            raise ArithmeticError(f"token {token_id} breaks the constraint")
        self.is_done = self._matcher.is_stopped()
        if not self.is_done:
            self._allowed = self._pool.submit(self._compute)

    # In the pool

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
        return torch.frombuffer(bytearray(bits), dtype=torch.uint8)
