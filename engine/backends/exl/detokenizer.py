"""Turns a job's tokens into text, piece by piece. Pieces consist of whole characters, and are cut
at stop strings.

The library's own code has three faults. It loses text at a stop token and at the token limit. It
decodes characters that span several tokens wrongly. It chooses among several stop strings in the
arbitrary order of a set.
"""

from collections.abc import Collection, Mapping, Sequence

from switchyard.engine.backends.exl.stops import StopSearch, Told
from switchyard.engine.job import Job
from switchyard.engine.model.tokens.decoder import TextDecoder


class Detokenizer:
    """Takes the tokens of one job and returns its text. Used on the engine thread."""

    def __init__(
        self,
        pieces: Sequence[bytes],
        job: Job,
        contents: Mapping[int, bytes] | None = None,
        ends: Collection[int] = (),
    ) -> None:
        """`pieces`: the bytes that each token adds to a text. `contents`: the text of each added
        token, which appears only if the token is in `job.shown_token_ids`. `ends`: tokens that also
        end a span.
        """
        shown = {i: contents[i] for i in job.shown_token_ids if i in contents} if contents else {}
        self._decoder = TextDecoder(pieces, shown)
        self._decode = self._decoder.push
        # Stop tokens that may be part of a span's beginning. Only `stop` says if one ends the text.
        self.unsure = frozenset(
            i
            for i in job.stop_token_ids
            if i not in ends and i < len(pieces)
            if any(_touches(pieces[i], span.begin.encode()) for span in job.spans)
        )
        self._stops = StopSearch(job, self.unsure)
        self._min_tokens = job.min_new_tokens
        self._num_tokens = 0
        self._waiting: list[int] = []  # tokens whose text has not been sent
        self._healed = job.healing.text if job.healing is not None else ""  # text to leave out

    @property
    def stop(self) -> str | int | None:
        """The stop string, or the token from `unsure`, that has ended the text."""
        return self._stops.stop

    @property
    def is_in_span(self) -> bool:
        """Whether the text ends inside a span, where the client's stop strings have no effect."""
        return self._stops.is_inside

    def push(self, token_id: int, is_last: bool = False) -> Told:
        """Returns the text that becomes certain with this token."""
        self._num_tokens += 1
        text = self._decode(token_id, is_last)
        if text and not self._waiting and not self._healed:  # nearly always
            if not self._stops.is_needed:
                return text, (token_id,)
            return self._search(text, [token_id], is_last)
        self._waiting.append(token_id)
        return self._tell(text, is_last)

    def flush(self) -> Told:
        """Returns all remaining text, after the last token."""
        return self._tell(self._decoder.finish(), is_last=True)

    def _tell(self, text: str, is_last: bool) -> Told:
        """Sends a token with its first character, even if its last character still lacks bytes."""
        token_ids: list[int] = []
        if text or is_last or self._decoder.is_whole:
            token_ids, self._waiting = self._waiting, token_ids
        if self._healed and text:
            text, self._healed = text.removeprefix(self._healed), ""
        if not self._stops.is_needed:
            return text, tuple(token_ids)
        return self._search(text, token_ids, is_last)

    def _search(self, text: str, token_ids: list[int], is_last: bool) -> Told:
        return self._stops.add(text, token_ids, self._num_tokens < self._min_tokens, is_last)


def _touches(piece: bytes, begin: bytes) -> bool:
    """Whether a token with the bytes `piece` can be part of an occurrence of `begin`."""
    shifts = range(1 - len(piece), len(begin)) if piece and begin else ()
    return any(
        piece[max(-at, 0) : len(begin) - at] == begin[max(at, 0) : at + len(piece)] for at in shifts
    )


class NoText:
    """Replaces the library's tokenizer and its list of token texts, which aren't needed, because a
    job's text comes from its Detokenizer. Loading them would take as long as loading our own
    tokenizer.
    """

    def get_id_to_piece_list(self, _: bool = False) -> "NoText":
        return self

    def __getitem__(self, token_id: int) -> str:
        return ""
