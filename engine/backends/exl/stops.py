"""Searches a text, piece by piece, for the stop string that ends it. Stop strings have no effect in
some spans.
"""

from collections import deque
from collections.abc import Collection, Sequence

from switchyard.engine.job import Job, Span

Told = tuple[str, tuple[int, ...]]  # text and its tokens
MAX_SPACE = 64  # characters of white space that may wait for a span to begin


class StopSearch:
    """Takes the text of one job and returns the part that can be sent. Used on the engine thread.

    The stop string that begins first ends the text, regardless of how tokens divide the text. After
    a complete stop string, the search therefore waits for as long as another stop string may have
    begun earlier. A stop string that was complete before `min_new_tokens`, or that touches a span
    in `Job.spans`, is ordinary text. A stop token that touches a span is ordinary text, too.
    Whether a token in `unsure` does so is known only once the following text shows whether a span
    has begun.
    """

    def __init__(self, job: Job, unsure: Collection[int] = ()) -> None:
        self.stop: str | int | None = None  # the string or unsure token that has ended the text
        self._unsure = unsure
        self._tokens: list[tuple[int, int, int]] = []  # unsure ones: place, length, id
        self._stop_strings = job.stop_strings
        self._includes_stop = job.include_stop
        # Without the client's stops, the spans have no effect.
        self._spans = job.spans if job.stop_strings or job.stop_token_ids else ()
        self.is_needed = bool(self._stop_strings or self._spans)
        self._firsts = frozenset(one[0] for one in self._stop_strings)
        self._pairs = tuple({one[:2] for one in self._stop_strings})
        self._held: deque[tuple[str, list[int]]] = deque()  # text that may contain a stop string
        self._text = ""  # the text of `_held`
        self._free = 0  # stop strings that end within these first characters don't count
        self._start = 0  # neither stop strings nor spans begin within these
        self._span = next((span for span in self._spans if not span.begin), None)  # at the end
        self._is_first = True  # only spans and white space so far
        self._skips_space = False  # only white space since the last span

    @property
    def is_inside(self) -> bool:
        """Whether the text ends inside a span."""
        return self._span is not None

    def add(self, text: str, token_ids: list[int], is_free: bool, is_last: bool) -> Told:
        """Returns the text that can no longer be part of a stop string, or the text up to the stop
        string that ends it. `is_free`: stop strings that end in this text or earlier have no
        effect.
        """
        if not self._held and not self._spans and not self._may_begin(text):  # nearly always
            return text, tuple(token_ids)
        if self._unsure:
            place = len(self._text), len(text)
            self._tokens += [(*place, i) for i in token_ids if i in self._unsure]
        self._held.append((text, token_ids))
        self._text += text
        if is_free:
            self._free = len(self._text)
        while self._leave(is_last):
            at, span = self._find_span() if self._spans else (len(self._text), None)
            end = at
            if self._spans and span is None and not is_last:
                end = self._before_space(self._begun_span())
            certain = end
            if span is None and not is_last:
                certain = min(end, self._find_begun(self._stop_strings))
            found = self._find_stops()
            # A stop that touches a possible span waits too.
            inside = [stop for stop in found if stop[0] + stop[1] <= end]
            certain = min([certain, *(where for where, *_ in found)]) if span is None else certain
            where, length, stop = min(inside, key=lambda stop: stop[0], default=(0, 0, None))
            if stop is not None and where <= certain:
                self.stop = stop
                if isinstance(stop, str) and self._includes_stop:
                    where += length
                return self._text[:where], tuple(i for _, ids in self._held for i in ids)
            if span is None:
                return self._release(len(self._text) if is_last else certain)
            self._span = span
            self._start = self._text.find(span.begin, at) + len(span.begin)
        return self._release(self._start)

    def _may_begin(self, text: str) -> bool:
        """Whether a stop string may begin in the text, judging from its first two characters."""
        if self._firsts.isdisjoint(text):
            return False
        return text[-1] in self._firsts or any(pair in text for pair in self._pairs)

    def _leave(self, is_last: bool) -> bool:
        """Moves past the end of the span that the text is in, if any. Returns whether the text is
        outside a span now.
        """
        if self._span is not None:
            end = self._span.end
            at = self._text.find(end, self._start) if end else -1
            if at < 0:
                ends = (end,) if end and not is_last else ()
                self._start = self._find_begun(ends)
                return False
            self._start = at + len(end)
            self._span, self._skips_space = None, True
        if self._skips_space:
            rest = self._text[self._start :].lstrip()
            self._start = len(self._text) - len(rest)
            self._skips_space = not rest
        return True

    def _find_span(self) -> tuple[int, Span | None]:
        """Returns where the first span in the text begins, including white space before it, and the
        span. If there is none, returns the end of the text and None.
        """
        rest = self._text[self._start :].lstrip() if self._is_first and self._spans else ""
        if rest:
            first = [span.begin for span in self._spans if span.is_first and span.begin]
            self._is_first = any(b.startswith(rest) or rest.startswith(b) for b in first)
        found = [
            (at, span)
            for span in self._open_spans()
            if (at := self._text.find(span.begin, self._start)) >= 0
        ]
        if not found:
            return len(self._text), None
        at, span = min(found, key=lambda pair: pair[0])
        return self._before_space(at), span

    def _open_spans(self) -> list[Span]:
        """The spans that may begin at this point."""
        return [s for s in self._spans if s.begin and (self._is_first or not s.is_first)]

    def _begun_span(self) -> int:
        return self._find_begun([span.begin for span in self._open_spans()])

    def _before_space(self, at: int) -> int:
        """Where the white space before `at` begins, if a span may follow it; otherwise `at`."""
        if not self._open_spans():
            return at
        least = max(self._start, at - MAX_SPACE)
        return least + len(self._text[least:at].rstrip())

    def _find_stops(self) -> list[tuple[int, int, str | int]]:
        """The position and length of each stop string's first occurrence that counts."""
        found: list[tuple[int, int, str | int]] = [t for t in self._tokens if t[0] >= self._start]
        for one in self._stop_strings:
            at = self._text.find(one, max(self._free - len(one) + 1, self._start))
            if at >= 0:
                found.append((at, len(one), one))
        return found

    def _find_begun(self, texts: Sequence[str]) -> int:
        """The index from which the rest of the text may be the beginning of one of `texts`, or the
        text's end if there is none.
        """
        first = len(self._text)
        for one in texts:
            start = max(len(self._text) - len(one) + 1, self._start)
            while 0 <= (start := self._text.find(one[0], start)) < first:
                if one.startswith(self._text[start:]):
                    first = start
                start += 1
        return first

    def _release(self, end: int) -> Told:
        """Returns the tokens whose text comes before `end`."""
        text, token_ids = "", []
        while self._held and len(text) + len(self._held[0][0]) <= end:
            piece, ids = self._held.popleft()
            text += piece
            token_ids += ids
        self._text = self._text[len(text) :]
        if self._tokens:
            moved = [(at - len(text), length, i) for at, length, i in self._tokens]
            self._tokens = [one for one in moved if one[0] >= 0]
        self._free = max(self._free - len(text), 0)
        self._start = max(self._start - len(text), 0)
        return text, tuple(token_ids)
