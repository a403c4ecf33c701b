"""The constraint of one job, as token masks. Runs on the engine thread, except for the pool's
work.
"""

import concurrent.futures
import time
from collections.abc import Sequence
from concurrent.futures import Future

import torch
from llguidance import LLMatcher

from switchyard.engine.backends.sampling.forcing import TextWatch
from switchyard.engine.backends.sampling.rules import Among, Without
from switchyard.engine.errors import ConstraintTooSlow
from switchyard.engine.grammar.bills import Bill
from switchyard.engine.grammar.grammars import PANICS, Grammars, check_matcher
from switchyard.engine.grammar.masks import MaskThreads
from switchyard.engine.grammar.turns import SlowTurns
from switchyard.engine.job import Constraint

# Seconds from the start of a mask's computation until its job fails. `Grammars` bounds the work for
# one mask; this bound is for a library that does not return.
MASK_TIMEOUT = 10.0
QUICK = 0.0005  # seconds for a mask; the token after it then holds the GIL for at most half as long
NOTE_AFTER = 0.001  # seconds of core time, enough for some dozens of masks


class Matcher:
    """The masks of one job. A pool computes each mask while the model computes the logits, without
    holding the GIL. llguidance holds the GIL while it accepts a token; if that takes long, jobs
    take turns. Until the text `after` has occurred, all tokens are allowed except end tokens and
    tokens whose text extends beyond the end of `after`.
    """

    def __init__(
        self,
        constraint: Constraint,
        grammars: Grammars,
        pool: MaskThreads,
        turns: SlowTurns,
        bill: Bill,
        ends: Sequence[int] = (),
    ) -> None:
        """`ends`: the job's end tokens in addition to the model's."""
        self.is_done = False  # complete: no token may follow
        self._constraint = constraint
        self._grammars = grammars
        self._pool = pool
        self._turns = turns
        self._bill = bill
        self._ends = ends
        self._watch = TextWatch(constraint.after)
        self._overshooting: dict[int, list[int]] = {}
        self._matcher: LLMatcher | None = None
        self._seconds = 0.0  # core time for masks, not yet noted
        self._began: float | None = None  # start of the mask in progress, on the monotonic clock
        self._allowed: Future[torch.Tensor] = pool.submit(self._begin, bill.debt)

    @property
    def is_ready(self) -> bool:
        """Whether the next mask exists and it is this job's turn, or whether the mask is
        overdue.
        """
        if not self._allowed.done():
            return self._is_overdue
        return not self._needs_turn or self._turns.is_free

    @property
    def _needs_turn(self) -> bool:
        return self._watch.has_come and self._bill.latest > QUICK

    @property
    def _is_overdue(self) -> bool:
        began = self._began
        return began is not None and time.monotonic() - began > MASK_TIMEOUT

    def begin(self) -> None:
        if self._needs_turn:
            self._turns.take(self._bill.latest)

    def wait(self, seconds: float) -> None:
        concurrent.futures.wait((self._allowed,), seconds)

    def limit(self) -> Among | Without:
        """Returns the next mask. Raises any error that occurred while the mask was computed."""
        allowed = self._mask()
        if self._watch.has_come:
            return Among(allowed)
        begun = [i for n in self._watch.begun for i in self._overshooting.get(n, [])]
        return Without([*self._grammars.tokenizer.eos_tokens, *self._ends, *begun])

    def _mask(self) -> torch.Tensor:
        if not self._allowed.done():
            assert self._is_overdue
            raise ConstraintTooSlow(
                f"the constraint is too slow: it took more than {MASK_TIMEOUT:.0f} s for one token",
                "constraint",
            )
        return self._allowed.result()

    def accept(self, token_id: int) -> None:
        """Take the next token, which must not be an end token. Raises ArithmeticError for a token
        that was not allowed, and InvalidJob if the constraint gets too large.
        """
        if not self._watch.has_come:
            self._watch.add(self._grammars.pieces[token_id])
            return
        allowed = self._mask()
        assert self._matcher is not None
        begin = time.thread_time()
        with PANICS:
            is_taken = self._matcher.consume_token(token_id)
        seconds = time.thread_time() - begin
        self._bill.charge_token(seconds)
        if self._needs_turn:
            self._turns.end(seconds)
        if not is_taken:
            if allowed[token_id // 8] >> token_id % 8 & 1:  # allowed, but it took too many steps
                check_matcher(self._matcher)
            raise ArithmeticError(f"token {token_id} violates the constraint")
        self.is_done = self._matcher.is_stopped()
        if not self.is_done:
            self._allowed = self._pool.submit(self._compute, self._bill.debt)

    def close(self) -> None:
        self._allowed.cancel()

    # Threads of the pool

    def _begin(self) -> torch.Tensor:
        if not self._watch.has_come:
            self._overshooting = self._grammars.overshooting(self._constraint.after)
        self._matcher = self._grammars.matcher(self._constraint.grammar)
        return self._compute()

    def _compute(self) -> torch.Tensor:
        assert self._matcher is not None
        self._bill.check()  # other jobs of the client may have cost too much meanwhile
        self._began, begin = time.monotonic(), time.thread_time()
        try:
            with PANICS:
                bits = self._matcher.compute_bitmask()
        finally:
            self._began = None
            seconds = time.thread_time() - begin
            self._bill.charge_mask(seconds)
        self._bill.check()
        self._seconds += seconds
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
