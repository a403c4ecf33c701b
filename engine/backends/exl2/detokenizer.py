"""Turns a job's tokens into text, piece by piece: whole characters, cut at stop strings.

The generator's own code has three faults. It loses text at a stop token and at the limit. It
decodes characters of several tokens wrongly. It chooses between stop strings by the order of a set.
"""

from collections import deque
from typing import Any

from switchyard.engine.job import Job

INCOMPLETE = "\ufffd"  # decoded from bytes that are no character, or not yet
MAX_INCOMPLETE = 3  # last tokens that may be part of a four-byte character

Told = tuple[str, tuple[int, ...]]  # text and its tokens


class Detokenizer:
    """Takes the tokens of one job, returns its text. Engine thread.

    The stop string that begins first in the text ends it, however the tokens divide the text. So a
    complete stop string waits for another that may have begun before it. A stop string that was
    complete before `min_new_tokens` is ordinary text.
    """

    def __init__(self, tokenizer: Any, job: Job) -> None:
        """`tokenizer`: an ExLlamaV2Tokenizer."""
        self.stop_string: str | None = None  # the one that has ended the text
        self._pieces: list[str] = tokenizer.get_id_to_piece_list()
        self._hf_tokenizer: Any = tokenizer.tokenizer_model.hf_tokenizer
        self._shown = {i: self._hf_tokenizer.id_to_token(i) for i in job.shown_token_ids}
        self._stop_strings = job.stop_strings
        self._includes_stop = job.include_stop
        self._min_tokens = job.min_new_tokens
        self._num_tokens = 0
        self._incomplete: list[int] = []  # tokens whose text may depend on later ones
        self._healed = job.healing.text if job.healing is not None else ""  # text of the prompt
        self._held: deque[tuple[str, list[int]]] = deque()  # text that may contain a stop string
        self._text = ""  # the text of `_held`
        self._free = 0  # stop strings that end within these first characters don't count

    def push(self, token_id: int, is_last: bool = False) -> Told:
        """Returns the text that is certain after one more token."""
        self._num_tokens += 1
        self._incomplete.append(token_id)
        return self._tell(is_last)

    def flush(self) -> Told:
        """Returns all remaining text, since no token follows."""
        return self._tell(is_last=True)

    def _tell(self, is_last: bool) -> Told:
        text, token_ids = self._decode(is_last)
        if not self._stop_strings:
            return text, tuple(token_ids)
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

    def _decode(self, is_last: bool) -> tuple[str, list[int]]:
        """Text that no later token can change, of tokens that leave `_incomplete`.

        The tokens of one character are decoded together, and without others: some decoders strip a
        space at the beginning. Bytes that are no character, with text behind them, are final.
        """
        token_ids = self._incomplete
        if token_ids and token_ids[-1] in self._shown:
            *before, shown = token_ids
            text = (self._hf_tokenizer.decode(before) if before else "") + self._shown[shown]
        elif len(token_ids) == 1 and INCOMPLETE not in self._pieces[token_ids[0]]:
            text = self._pieces[token_ids[0]]
        else:
            text = self._hf_tokenizer.decode(token_ids)
            if text.endswith(INCOMPLETE) and not is_last:
                token_ids = token_ids[:-MAX_INCOMPLETE]
                text = self._hf_tokenizer.decode(token_ids)
        self._incomplete = self._incomplete[len(token_ids) :]
        if self._healed and text:
            text, self._healed = text.removeprefix(self._healed), ""
        return text, token_ids

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
