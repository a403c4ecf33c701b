"""Turns a job's tokens into text, piece by piece: whole characters, cut at stop strings.

The generator's own code has three faults. It loses text at a stop token and at the limit. It
decodes characters of several tokens wrongly. It chooses between stop strings by the order of a set.
"""

from collections import deque
from collections.abc import Mapping, Sequence

from switchyard.engine.job import Job
from switchyard.engine.model.tokens.decoder import TextDecoder

Told = tuple[str, tuple[int, ...]]  # text and its tokens


class Detokenizer:
    """Takes the tokens of one job, returns its text. Engine thread.

    The stop string that begins first in the text ends it, however the tokens divide the text. So a
    complete stop string waits for another that may have begun before it. A stop string that was
    complete before `min_new_tokens` is ordinary text.
    """

    def __init__(
        self, pieces: Sequence[bytes], job: Job, contents: Mapping[int, bytes] | None = None
    ) -> None:
        """`pieces`: the bytes that each token adds to a text. `contents`: what added tokens spell,
        for those that the job wants to be shown.
        """
        self.stop_string: str | None = None  # the one that has ended the text
        shown = {i: contents[i] for i in job.shown_token_ids if i in contents} if contents else {}
        self._decoder = TextDecoder(pieces, shown)
        self._decode = self._decoder.push
        self._stop_strings = job.stop_strings
        self._includes_stop = job.include_stop
        self._min_tokens = job.min_new_tokens
        self._num_tokens = 0
        self._waiting: list[int] = []  # tokens without any character told
        self._healed = job.healing.text if job.healing is not None else ""  # text of the prompt
        self._held: deque[tuple[str, list[int]]] = deque()  # text that may contain a stop string
        self._text = ""  # the text of `_held`
        self._free = 0  # stop strings that end within these first characters don't count

    def push(self, token_id: int, is_last: bool = False) -> Told:
        """Returns the text that is certain after one more token."""
        self._num_tokens += 1
        text = self._decode(token_id, is_last)
        if text and not self._waiting and not self._healed:  # nearly always
            if not self._stop_strings:
                return text, (token_id,)
            return self._hold(text, [token_id], is_last)
        self._waiting.append(token_id)
        return self._tell(text, is_last)

    def flush(self) -> Told:
        """Returns all remaining text, since no token follows."""
        return self._tell(self._decoder.finish(), is_last=True)

    def _tell(self, text: str, is_last: bool) -> Told:
        """A token goes with its first character, though its last one may still wait for bytes."""
        token_ids: list[int] = []
        if text or is_last or self._decoder.is_whole:
            token_ids, self._waiting = self._waiting, token_ids
        if self._healed and text:
            text, self._healed = text.removeprefix(self._healed), ""
        if not self._stop_strings:
            return text, tuple(token_ids)
        return self._hold(text, token_ids, is_last)

    def _hold(self, text: str, token_ids: list[int], is_last: bool) -> Told:
        """Returns the text that no stop string can begin in, up to the one that ends it all."""
        self._held.append((text, token_ids))
        self._text += text
        if self._num_tokens < self._min_tokens:
            self._free = len(self._text)
        begin = len(self._text) if is_last else self._find_begun()
        found = [(at, s) for s in self._stop_strings if (at := self._find(s)) >= 0]
        at, stop_string = min(found, key=lambda pair: pair[0], default=(begin, None))
        if stop_string is None or at > begin:
            return self._release(begin)
        self.stop_string = stop_string
        if self._includes_stop:
            at += len(stop_string)
        return self._text[:at], tuple(i for _, ids in self._held for i in ids)

    def _find(self, stop_string: str) -> int:
        """Index of the first occurrence that counts, or -1."""
        return self._text.find(stop_string, max(self._free - len(stop_string) + 1, 0))

    def _find_begun(self) -> int:
        """Index where the text may end in the beginning of a stop string; else the text's end."""
        first = len(self._text)
        for stop_string in self._stop_strings:
            start = max(len(self._text) - len(stop_string) + 1, 0)
            while 0 <= (start := self._text.find(stop_string[0], start)) < first:
                if stop_string.startswith(self._text[start:]):
                    first = start
                start += 1
        return first

    def _release(self, end: int) -> Told:
        """Returns the tokens whose text lies before `end`."""
        text, token_ids = "", []
        while self._held and len(text) + len(self._held[0][0]) <= end:
            piece, ids = self._held.popleft()
            text += piece
            token_ids += ids
        self._text = self._text[len(text) :]
        self._free = max(self._free - len(text), 0)
        return text, tuple(token_ids)


class NoText:
    """Stands for the library's tokenizer, and for its list of tokens' texts: a job's text comes
    from its Detokenizer. Loading the library's own takes as long as the model's tokenizer.
    """

    def get_id_to_piece_list(self, _: bool = False) -> "NoText":
        return self

    def __getitem__(self, token_id: int) -> str:
        return ""
