"""Decides how many tokens of new prompts an iteration computes in addition to its decode step. Does
no I/O.
"""

import math

WEIGHT = 0.2  # of a measured iteration in the means
LEAST_SHARE = 32  # tokens; a smaller part of a prompt, alongside others, is not worth a pass


class Budget:
    """The number of prompt tokens for each iteration, shared by the prompts in the order in which
    they started. While no prompt waits, the number is `usual`. It doubles with each iteration in
    which a prompt waits, up to `most`, and afterwards falls back. Judging from the iterations
    measured so far, the number never makes an iteration exceed `gap`, but it is at least a quarter
    of `usual`, because prompts must continue.
    """

    def __init__(self, usual: int, most: int, gap: float = math.inf) -> None:
        """`gap`: the maximum time of an iteration, in seconds."""
        self._usual = min(usual, most)
        self._most = most
        self._gap = gap
        self._left = 0  # tokens left in this iteration
        self._spent = 0
        self._is_short = False  # whether a prompt has waited in this iteration
        self._level = 0  # doublings of `usual`
        self._step: float | None = None  # mean seconds of iterations without prompts
        self._token: float | None = None  # mean seconds that a token of a prompt adds

    @property
    def least(self) -> int:
        return max(self._usual // 4, min(16, self._usual))

    @property
    def tokens(self) -> int:
        """The number of prompt tokens for the next iteration in which a job decodes."""
        wanted = min(self._usual << self._level, self._most)
        return max(min(wanted, self._within_gap()), self.least)

    def has_room(self, num_left: int, most: int) -> bool:
        """Whether another prompt gets a share of the next iteration. `num_left`: the number of
        tokens left in the prompts that have started. `most`: the number of prompt tokens for that
        iteration.
        """
        has_room = num_left + LEAST_SHARE <= most or not num_left
        self._is_short |= not has_room
        return has_room

    def begin(self, tokens: int) -> None:
        """Begin an iteration with `tokens` tokens for prompts."""
        self._left, self._spent = tokens, 0

    def share(self, num_left: int) -> int:
        """Returns how many tokens the next prompt gets in this iteration. The prompt has `num_left`
        tokens left. If these don't all fit, the share is a power of two, because other sizes don't
        match a shared pass and would need their own pass.
        """
        share = min(num_left, max(self._left, 0))
        if share == num_left or (share < LEAST_SHARE and not self._spent):
            return share
        return 1 << (share.bit_length() - 1) if share >= LEAST_SHARE else 0

    def spend(self, num_tokens: int) -> None:
        self._left -= num_tokens
        self._spent += num_tokens

    def end(self, seconds: float, is_decoding: bool) -> None:
        """End an iteration that took `seconds`. `is_decoding`: whether a job decoded in it."""
        if is_decoding:
            self._measure(seconds)
        most = max(math.ceil(math.log2(self._most / self._usual)), 0)
        self._level = min(max(self._level + (1 if self._is_short else -1), 0), most)
        self._is_short = False

    def _measure(self, seconds: float) -> None:
        if not self._spent:
            step = seconds if self._step is None else self._step
            self._step = step + WEIGHT * (seconds - step)
            return
        added = max(seconds - (self._step or 0.0), 0.0) / self._spent
        token = added if self._token is None else self._token
        # A pass's fixed cost raises the cost per token of a short one, so short ones count less.
        weight = WEIGHT * min(self._spent / self._usual, 1.0)
        self._token = token + weight * (added - token)

    def _within_gap(self) -> int:
        if self._gap == math.inf:
            return self._most
        if not self._token:  # nothing is known yet
            return self._usual
        return int(max(self._gap - (self._step or 0.0), 0.0) / self._token)
