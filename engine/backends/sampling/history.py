"""The token ids of the jobs' texts, as rows on the device, for penalties. Used on the engine
thread.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

import torch

from switchyard.engine.backends.sampling.transfer import upload

GROWTH = 256  # spare tokens in a row, so that rows are rarely replaced


class WrittenTokens(Protocol):
    """A text whose tokens stay on the device for as long as each call to `rows` includes the
    text.
    """

    token_ids: list[int]  # of prompt and completion; only grows


class History:
    """Has a row for each text. A row is written when its text is first used, and is then extended
    with new tokens.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._ids = torch.zeros((0, 0), dtype=torch.int32, device=device)
        self._slots: dict[WrittenTokens, int] = {}
        self._num_known: dict[WrittenTokens, int] = {}
        self._free: list[int] = []

    def rows(self, texts: Sequence[WrittenTokens]) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns token ids and ages, both (texts, tokens of the longest text). A token's age is
        the number of tokens after it; padding has an age below 0.
        """
        self._keep(texts)
        self._write(texts)
        lengths = [len(text.token_ids) for text in texts]
        slots = upload([self._slots[text] for text in texts], torch.long, self._device)
        token_ids = self._ids[slots, : max(lengths)].long()
        ends = upload(lengths, torch.long, self._device)[:, None] - 1
        return token_ids, ends - torch.arange(max(lengths), device=self._device)

    def _keep(self, texts: Sequence[WrittenTokens]) -> None:
        """Keep rows for these texts only."""
        if len(self._slots) > len(texts) or any(text not in self._slots for text in texts):
            present = set(texts)
            for gone in [text for text in self._slots if text not in present]:
                self._free.append(self._slots.pop(gone))
                del self._num_known[gone]
        new = [text for text in texts if text not in self._slots]
        self._grow(len(new) - len(self._free), max(len(text.token_ids) for text in texts))
        for text in new:
            self._slots[text], self._num_known[text] = self._free.pop(), 0

    def _grow(self, num_missing: int, length: int) -> None:
        num_rows, width = self._ids.shape
        more = max(num_missing, 0) and max(num_missing, num_rows)
        if more or length > width:
            size = (num_rows + more, max(width, length + GROWTH))
            grown = torch.zeros(size, dtype=torch.int32, device=self._device)
            grown[:num_rows, :width] = self._ids
            self._ids = grown
            self._free += range(num_rows, num_rows + more)

    def _write(self, texts: Iterable[WrittenTokens]) -> None:
        added: list[tuple[int, int, int]] = []  # slot, place, token id
        for text in texts:
            slot, known, ids = self._slots[text], self._num_known[text], text.token_ids
            if known == len(ids) - 1:
                added.append((slot, known, ids[known]))
            elif known < len(ids):
                self._ids[slot, known : len(ids)] = upload(ids[known:], torch.int32, self._device)
            self._num_known[text] = len(ids)
        if added:
            slots, places, token_ids = upload(added, torch.long, self._device).unbind(1)
            self._ids[slots, places] = token_ids.int()
