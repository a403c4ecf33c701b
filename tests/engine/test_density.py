"""The guess of a text's number of tokens, from the texts encoded before."""

import random
import string

import pytest

from switchyard import engine
from switchyard.engine.model.tokens.density import LONG, MEMORY
from tests.live.warm import DEMO


@pytest.fixture(scope="module")
def model_dir():
    return engine.ModelDir.read(str(DEMO))


WORDS = "the small old bird went down to a river and said that it would not come back"


def english(draw, length):
    return " ".join(draw.choices(WORDS.split(), k=length))[:length]


def letters(draw, length):
    return "".join(draw.choices(string.ascii_letters, k=length))


@pytest.mark.parametrize("write", [english, letters])
def test_a_guess_learns_from_long_texts_and_stays_below_their_like(model_dir, write):
    tokenizer, draw = engine.Tokenizer(model_dir), random.Random(1)
    for _ in range(MEMORY):
        assert tokenizer.guess(16_000) == 1000
        tokenizer.encode(write(draw, LONG), 1 << 20)
        tokenizer.encode("a" * (LONG - 1), 1 << 20)  # too short to learn from
    for length in (LONG, 3 * LONG, 11_000):
        num_tokens = len(tokenizer.encode(write(draw, length), 1 << 20))
        guess = tokenizer.guess(length)
        assert guess <= num_tokens * 1.05
        assert length // 16 < guess <= length // 4  # dense texts don't shut ordinary ones out
