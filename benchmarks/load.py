"""The clients' requests: prompts and lengths from a fixed mix, the same at every run."""

import random
import time
import uuid
from dataclasses import dataclass

WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog", "import", "class", "def")


def add_arguments(parser):
    parser.add_argument("--prompt-words", default="16,64,64,256", help="each as often as it stands")
    parser.add_argument("--new-tokens", default="32,64,128,256", help="likewise")
    parser.add_argument("--warm", type=float, default=5.0, help="seconds before it counts")
    parser.add_argument("--seconds", type=float, default=10.0, help="that count, of a round")
    parser.add_argument("--rounds", type=int, default=3, help="the median counts")


@dataclass(frozen=True)
class Load:
    prompt_words: tuple[int, ...]
    new_tokens: tuple[int, ...]

    @classmethod
    def read(cls, args):
        return cls(*(tuple(map(int, s.split(","))) for s in (args.prompt_words, args.new_tokens)))

    def requests(self, seed):
        """Yields (prompt, new tokens) without end. No two prompts, of any run, begin alike: no page
        of a cache is shared.
        """
        rng = random.Random(seed)
        while True:
            words = [rng.choice(WORDS) for _ in range(rng.choice(self.prompt_words))]
            yield f"{uuid.uuid4().hex[:8]} {' '.join(words)}", rng.choice(self.new_tokens)


def within(seconds, values):
    """Number of values in the measured time."""
    deadline = time.perf_counter() + seconds
    for value in values:
        if time.perf_counter() > deadline:
            return
        yield value
