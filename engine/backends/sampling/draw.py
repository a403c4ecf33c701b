"""Draws the next tokens of all jobs in a batch from their rows of logits, according to each job's
Sampling. Used on the engine thread. One operation applies a common parameter to all rows; rarer
parameters are applied row by row. Either way, a row's token depends only on its own logits,
settings and random numbers.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional

from switchyard.engine.backends.sampling import candidates, penalties, whole
from switchyard.engine.backends.sampling.history import History
from switchyard.engine.backends.sampling.logprobs import measure, tell
from switchyard.engine.backends.sampling.rules import Among, Only, Without
from switchyard.engine.backends.sampling.sampler import Sampler
from switchyard.engine.backends.sampling.transfer import Download, column, upload
from switchyard.engine.errors import InvalidJob, JobFailed
from switchyard.engine.messages import TokenLogprob

# Codes in place of a token id
NONE_LEFT = -1
NOT_NUMBERS = -2


# Draws `is_few` rows with a graph that reads these logits. Returns `coded` tokens; None if there is
# no such graph.
Few = Callable[[Sequence[candidates.RowSettings], torch.Tensor], torch.Tensor | None]

# Returns the tokens of some rows, and their highest logits.
_Way = Callable[[Sequence[Sampler], torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


class Drawn(NamedTuple):
    """The result of a draw, with an entry for each row."""

    token_ids: list[int]  # below 0: a code for no token
    logprobs: list[TokenLogprob | None]  # None unless requested


class Drawing:
    """A draw that is in progress on the device."""

    def __init__(
        self,
        token_ids: torch.Tensor,
        samplers: Sequence[Sampler],
        rows: Sequence[int],
        logits: torch.Tensor | None,
    ) -> None:
        """`logits`: the model's raw logits for `rows`, the rows whose logprobs are requested."""
        self.token_ids = token_ids  # (rows,), on the device
        self._num_top = [samplers[i].num_logprobs or 0 for i in rows]
        self._rows = rows
        measured = []
        if logits is not None:
            chosen = token_ids[upload(rows, torch.long, token_ids.device)].clamp(min=0)
            measured = list(measure(logits, chosen, max(self._num_top)))
        self._download = Download([token_ids, *measured])

    def take(self) -> Drawn:
        """Waits for the draw, but not for later work on the device."""
        drawn, *measured = self._download.take()
        token_ids: list[int] = drawn.tolist()
        logprobs: list[TokenLogprob | None] = [None] * len(token_ids)
        if measured:
            told = tell([token_ids[i] for i in self._rows], measured)
            for i, num_top, one in zip(self._rows, self._num_top, told, strict=True):
                logprobs[i] = TokenLogprob(one.token_id, one.logprob, one.top[:num_top])
        return Drawn(token_ids, logprobs)


def check(token_id: int) -> None:
    """Raises InvalidJob if the job's settings exclude all tokens, and JobFailed if the logits are
    not numbers.
    """
    if token_id == NONE_LEFT:
        raise InvalidJob("no token is left to choose from: all are banned")
    if token_id == NOT_NUMBERS:
        raise JobFailed("the model's logits are not numbers")


def coded(token_ids: torch.Tensor, tops: torch.Tensor) -> torch.Tensor:
    """Returns tokens, or codes instead of tokens for failed draws. `tops`: the highest logit of
    each row.
    """
    token_ids = token_ids.masked_fill(tops == -math.inf, NONE_LEFT)
    return token_ids.masked_fill_(~(tops < math.inf), NOT_NUMBERS)


class Draw:
    def __init__(
        self,
        vocab_size: int,
        device: torch.device,
        model_vocab_size: int | None = None,
        few: Few | None = None,
    ) -> None:
        """`vocab_size`: the tokenizer's vocabulary size; logits beyond it belong to no token.
        `model_vocab_size`: the model's vocabulary size, if it differs; logprobs cover all of it.
        """
        self._few = few
        self._vocab_size = vocab_size
        self._model_vocab_size = model_vocab_size or vocab_size
        self._device = device
        self._history = History(device)
        # For each value of eight bits, the numbers to add to the logits of its tokens: 0 or -inf.
        shifts = torch.arange(8, device=device)
        is_allowed = torch.arange(256, device=device)[:, None] >> shifts & 1
        self._forbids = torch.where(is_allowed > 0, 0.0, -math.inf)

    def __call__(
        self, samplers: Sequence[Sampler], logits: torch.Tensor, negative: torch.Tensor | None
    ) -> Drawn:
        """Call `start`, then wait for the draw."""
        return self.start(samplers, logits, negative).take()

    def start(
        self, samplers: Sequence[Sampler], logits: torch.Tensor, negative: torch.Tensor | None
    ) -> Drawing:
        """`logits`: (samplers, padded vocabulary); may be changed in place. `negative`: the logits
        after the negative prompts of those samplers that have one, in order.
        """
        told, raw = _raw(samplers, logits, self._model_vocab_size)
        if self._few is not None and all(map(_is_usual, samplers)):
            settings = candidates.read(samplers, self._vocab_size)
            token_ids = self._few(settings, logits)
            if token_ids is None:
                columns = upload(settings, torch.float64, self._device)
                token_ids = coded(*candidates.choose(columns, logits[:, : self._vocab_size]))
            return Drawing(token_ids, samplers, told, raw)
        if not all(_is_taken_as_it_is(sampler) for sampler in samplers):
            logits = logits.float()
        if negative is not None:
            _guide(samplers, logits, negative.float())
        if self._vocab_size < logits.shape[-1]:
            logits[:, self._vocab_size :] = -math.inf
        self._limit(samplers, logits)
        self._penalize([(i, s) for i, s in enumerate(samplers) if s.is_penalized], logits)
        self._mask([(i, s) for i, s in enumerate(samplers) if s.is_masked], logits)
        token_ids, tops = self._choose(samplers, logits)
        return Drawing(coded(token_ids, tops), samplers, told, raw)

    def _limit(self, samplers: Sequence[Sampler], logits: torch.Tensor) -> None:
        """Apply the rules. A failed rule leaves its error in its sampler."""
        among: list[tuple[int, torch.Tensor]] = []
        others: list[tuple[int, Only | Without]] = []
        for i, sampler in enumerate(samplers):
            for rule in sampler.rules:
                try:
                    limit = rule.limit()
                except BaseException as error:
                    sampler.error = error
                    break
                if isinstance(limit, Among):
                    among.append((i, limit.bits))
                elif limit is not None:
                    others.append((i, limit))
        if among:
            rows, bits = zip(*among, strict=True)
            self._keep_among(logits, list(rows), torch.stack(bits))
        for i, limit in others:
            row = logits[i : i + 1]
            if isinstance(limit, Only):
                row.fill_(-math.inf)
                row[:, limit.token_id] = 0.0
            else:
                row.index_fill_(-1, self._tensor(limit.token_ids), -math.inf)

    def _keep_among(self, logits: torch.Tensor, rows: list[int], bits: torch.Tensor) -> None:
        """Uses one lookup for eight tokens, which on a CPU is ten times as fast as masking each
        token.
        """
        width = logits.shape[-1]
        bits = functional.pad(bits.to(self._device), (0, -(-width // 8) - bits.shape[-1])).int()
        forbids = functional.embedding(bits, self._forbids.to(logits.dtype)).flatten(1)
        logits.index_add_(0, self._tensor(rows), forbids[:, :width])

    def _penalize(self, rows: Sequence[tuple[int, Sampler]], logits: torch.Tensor) -> None:
        if not rows:
            return
        rows_of_logits, samplers = zip(*rows, strict=True)
        indices = self._tensor(rows_of_logits)
        settings = [s.sampling for s in samplers]
        token_ids, ages = self._history.rows(samplers)
        penalized = logits[indices]
        if any(s.repetition_penalty != 1.0 for s in settings):
            penalties.penalize_repetition(
                penalized,
                token_ids,
                ages,
                column((s.repetition_penalty for s in settings), self._device),
                column((s.repetition_range for s in settings), self._device),
                column((s.repetition_decay for s in settings), self._device),
            )
        if any(s.frequency_penalty or s.presence_penalty for s in settings):
            new_tokens = column((s.num_drawn for s in samplers), self._device)
            penalties.penalize_frequency(
                penalized,
                token_ids,
                (ages >= 0) & (ages < new_tokens),
                column((s.frequency_penalty for s in settings), self._device),
                column((s.presence_penalty for s in settings), self._device),
            )
        logits[indices] = penalized

    def _mask(self, rows: Sequence[tuple[int, Sampler]], logits: torch.Tensor) -> None:
        width = logits.shape[-1]
        biased: list[int] = []
        bias: list[float] = []
        banned: list[np.ndarray] = []
        for i, sampler in rows:
            s = sampler.sampling
            if s.dry_multiplier:
                self._penalize_continuations(sampler, logits[i : i + 1])
            biased += [i * width + token_id for token_id, _ in s.logit_bias]
            bias += [value for _, value in s.logit_bias]
            banned += [np.array(ids, dtype=np.int64) + i * width for ids in sampler.banned if ids]
        flat = logits.view(-1)
        if biased:
            flat.index_add_(0, self._tensor(biased), upload(bias, torch.float32, self._device))
        if banned:
            flat.index_fill_(0, self._tensor(np.concatenate(banned)), -math.inf)
        for i, sampler in rows:
            for allowed in sampler.allowed:
                penalties.keep_only(logits[i : i + 1], self._tensor(allowed))

    def _penalize_continuations(self, sampler: Sampler, row: torch.Tensor) -> None:
        s = sampler.sampling
        penalties.penalize_continuations(
            row,
            np.array(sampler.token_ids[-s.dry_range :]),  # 0: all
            sampler.is_breaker(self._vocab_size),
            s.dry_multiplier,
            s.dry_base,
            s.dry_allowed_length,
        )

    def _choose(
        self, samplers: Sequence[Sampler], logits: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns a token for each row, and the row's highest logit, both (rows,)."""
        rows: dict[_Way, list[int]] = {}
        for i, sampler in enumerate(samplers):
            rows.setdefault(_way(sampler), []).append(i)
        if len(rows) == 1:
            [way] = rows
            return way(samplers, logits)
        found = [
            way([samplers[i] for i in own], logits[self._tensor(own)]) for way, own in rows.items()
        ]
        order = self._tensor([i for own in rows.values() for i in own])
        token_ids, tops = (torch.cat(parts) for parts in zip(*found, strict=True))
        return token_ids.index_copy(0, order, token_ids), tops.index_copy(0, order, tops)

    def _tensor(self, values: Any) -> torch.Tensor:
        return upload(values, torch.long, self._device)


def _is_taken_as_it_is(sampler: Sampler) -> bool:
    """Whether no computation needs the sampler's whole row of logits."""
    is_changed = sampler.is_penalized or sampler.is_masked or sampler.is_pair
    return not is_changed and (sampler.is_few or not sampler.is_filtered)


def _is_usual(sampler: Sampler) -> bool:
    """Whether the draw is among few tokens, from unchanged logits."""
    return sampler.is_few and not sampler.rules and _is_taken_as_it_is(sampler)


def _way(sampler: Sampler) -> _Way:
    if not sampler.is_filtered:
        return _likeliest
    return candidates.draw if sampler.is_few else whole.draw


def _likeliest(_: Sequence[Sampler], logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    tops, token_ids = logits.max(-1)
    return token_ids, tops


def _raw(
    samplers: Sequence[Sampler], logits: torch.Tensor, vocab_size: int
) -> tuple[list[int], torch.Tensor | None]:
    """Returns the rows whose logprobs are requested, and their raw logits."""
    rows = [i for i, s in enumerate(samplers) if s.num_logprobs is not None]
    if not rows:
        return rows, None
    return rows, logits[upload(rows, torch.long, logits.device), :vocab_size]


def _guide(samplers: Sequence[Sampler], logits: torch.Tensor, negative: torch.Tensor) -> None:
    pairs = [(i, s) for i, s in enumerate(samplers) if s.is_pair]
    rows = [i for i, _ in pairs]
    scales = upload([[s.sampling.cfg_scale] for _, s in pairs], torch.float32, logits.device)
    indices = upload(rows, torch.long, logits.device)
    logits[indices] = penalties.guide(logits[indices], negative, scales)
