"""Compiles grammars for one model's tokens, on request threads and the backend's threads. Doesn't
use torch.
"""

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass

from llguidance import LLMatcher, LLParserLimits

from switchyard.engine.errors import InvalidJob
from switchyard.engine.grammar.tokens import make_tokenizer
from switchyard.engine.memory.process import give_memory_back
from switchyard.engine.model.tokenizer import Tokenizer
from switchyard.engine.panics import panics_as
from switchyard.engine.schedule.alarms import ALARMS

# Maximum size of all compiled grammars that are kept. llguidance doesn't report their sizes, which
# grow with use, because it computes states of its lexer on demand and keeps them. The size is
# estimated as 500 MB per second of core time, twice the measured maximum of 250 MB.
MAX_BYTES = 512 * 1024**2
KEPT_BYTES = 16 * 1024**2  # of grammars not used for QUIET seconds
QUIET = 5.0
BYTES_PER_SECOND = 512 * 1024**2
MIN_BYTES = 128 * 1024  # of the smallest grammar
MAX_GROWTH = 40 * 1024**2  # growth of one grammar: `max_lexer_states` states of 2 kB

# The maximum cost of one grammar, in llguidance's units. With llguidance's own limits, a regex of
# ten characters can take five seconds. With these limits, all grammars of tests/engine/constraints
# that are too large are refused within about one second.
LIMITS = LLParserLimits(
    initial_lexer_fuel=200_000,
    step_lexer_fuel=100_000,
    step_max_items=20_000,
    max_items_in_row=10_000,
    max_lexer_states=20_000,
    max_grammar_size=100_000,
    verbose_errors=False,
)


# Panics of the compiler, which catches most of them itself.
PANICS = panics_as(InvalidJob, "the constraint can't be enforced: it is too large", "constraint")


@dataclass(slots=True)
class _Compiled:
    matcher: LLMatcher  # at the beginning; copies share the states that grow
    size: int  # bytes, estimated from the time used so far
    max_size: int
    used: float  # time of the last use, on the monotonic clock


class Grammars:
    """The compiled grammars of a model. Can be used on any thread; compilation releases the GIL."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises ModelError."""
        self.model_tokenizer = tokenizer
        self.pieces = [*tokenizer.pieces]  # the bytes of each token, special ones included
        for token_id, content in tokenizer.contents.items():
            self.pieces[token_id] = content
        self.tokenizer = make_tokenizer(tokenizer, self.pieces)
        give_memory_back()  # that was needed to build its copy
        self._lock = threading.Lock()  # guards the attributes below
        self._compiled: OrderedDict[str, _Compiled] = OrderedDict()  # in order of use
        self._size = 0  # bytes of all grammars together
        self._has_alarm = False

    def matcher(self, grammar: str) -> LLMatcher:
        """Returns a new matcher, in its initial state. Raises InvalidJob for a grammar that is
        refused.
        """
        with self._lock:
            compiled = self._compiled.get(grammar)
            if compiled is not None:
                self._compiled.move_to_end(grammar)
                compiled.used = time.monotonic()
                return compiled.matcher.deep_copy()
        begin = time.thread_time()
        with PANICS:
            matcher = self._compile(grammar)
        size = MIN_BYTES + 2 * len(grammar) + _size(time.thread_time() - begin)
        with self._lock:
            if grammar not in self._compiled:  # else another thread has compiled it meanwhile
                now = time.monotonic()
                self._compiled[grammar] = _Compiled(matcher, size, size + MAX_GROWTH, now)
                self._grow(size)
        return matcher.deep_copy()

    def note_use(self, grammar: str, seconds: float) -> None:
        """Note that a matcher from `matcher` has used `seconds` of CPU time."""
        with self._lock:
            compiled = self._compiled.get(grammar)
            if compiled is not None:
                before = compiled.size
                compiled.size = min(before + _size(seconds), compiled.max_size)
                self._grow(compiled.size - before)

    def _grow(self, size: int) -> None:
        """The caller must hold the lock."""
        self._size += size
        while self._size > MAX_BYTES:
            self._drop()
        self._look_later()

    def _drop(self) -> None:
        """Drop the least recently used grammar. The caller must hold the lock."""
        _, dropped = self._compiled.popitem(last=False)
        self._size -= dropped.size

    def _look_later(self) -> None:
        """The caller must hold the lock."""
        if self._size > KEPT_BYTES and not self._has_alarm:
            self._has_alarm = True
            ALARMS.set(QUIET, self._drop_unused)

    # Alarms' thread

    def _drop_unused(self) -> None:
        before = time.monotonic() - QUIET
        with self._lock:
            self._has_alarm = False
            size = self._size
            while self._size > KEPT_BYTES and next(iter(self._compiled.values())).used <= before:
                self._drop()
            self._look_later()
        if self._size < size:
            give_memory_back()

    def overshooting(self, text: str) -> dict[int, list[int]]:
        """Returns the tokens whose text extends beyond the end of `text`, grouped by the number of
        bytes of `text` that precede the token.
        """
        whole = text.encode()
        found: dict[int, list[int]] = {}
        for token_id, piece in enumerate(self.pieces):
            if whole[-1:] not in piece[:-1]:
                continue
            if whole in piece and not piece.endswith(whole):
                found.setdefault(0, []).append(token_id)
            for length in range(1, len(whole)):
                rest = whole[length:]
                if piece.startswith(rest) and len(piece) > len(rest):
                    found.setdefault(length, []).append(token_id)
        return found

    def _compile(self, grammar: str) -> LLMatcher:
        compiled = LLMatcher(self.tokenizer, grammar, log_level=0, limits=LIMITS)
        check_matcher(compiled)
        if warnings := compiled.get_grammar_warnings():
            message = " ".join(warnings)
            raise InvalidJob(f"the constraint can't be enforced: {message}", "constraint")
        self._try_steps(compiled.deep_copy())
        return compiled

    def _try_steps(self, matcher: LLMatcher) -> None:
        """Take the first steps here rather than in the batch, because they cost the most if a
        grammar is too large.
        """
        allowed = matcher.compute_logit_bias()
        check_matcher(matcher)
        if not any(allowed):
            raise InvalidJob("it allows no text", "constraint")
        first = next(i for i, is_allowed in enumerate(allowed) if is_allowed)
        if first not in self.tokenizer.eos_tokens:
            matcher.consume_token(first)
            matcher.compute_logit_bias()
            check_matcher(matcher)


def _size(seconds: float) -> int:
    return int(seconds * BYTES_PER_SECOND)


# Parts of llguidance's messages about its own settings and states, and what a grammar's author
# reads instead.
_SAID = {
    "NoExtension": "it allows no text",
    "panic: ": "it is too large",  # and a place in the compiler
    "(limit for this grammar": "it is too large",
    "fuel exhausted": "it is too large",
    "limits.initial_lexer_fuel": "it is too large",
    "too many expressions constructed": "it is too large",
    "Too many items (limit": "too many of its parts may occur at the same position",
    "Current row has": "too many of its parts may occur at the same position",
}


def check_matcher(matcher: LLMatcher) -> None:
    """Raises InvalidJob if a single step, or many tokens together, exceeded the matcher's
    limits.
    """
    if matcher.is_error():
        message = matcher.get_error().removesuffix("<non-verbose/>").strip()
        message = next((said for part, said in _SAID.items() if part in message), message)
        raise InvalidJob(f"the constraint can't be enforced: {message[:1000]}", "constraint")
