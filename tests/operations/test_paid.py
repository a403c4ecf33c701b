"""What a request pays for, against what the real generator computes for it, on the CPU."""

import random

import pytest

from tests.engine.forced import exl2_backend
from tests.operations.conftest import Clock, bearer, entry
from tests.operations.ledgers import post, read

TPM = 10_000_000
SUMS = "SELECT total(prompt_tokens + completion_tokens), total(cached_tokens) FROM days"
WORDS = ("def", "return", "self", "import", " the", "    ", "(", "):\n", "x", "None")


class Paying:
    """A server over the real generator, and what the requests of its key ann cost."""

    def __init__(self, make_counted, keys_file, model_path, path):
        keys_file.write(entry("ann", tpm=TPM))
        self._num_computed = 0
        self._client = make_counted(exl2_backend(model_path, wrap=self._counted))
        self._quotas = self._client.application.extensions["switchyard"].checks.quotas
        self._quotas._clock = Clock()  # nothing flows back
        self._path = path

    def _counted(self, forward):
        def counted(input_ids, *args, **kwargs):
            self._num_computed += input_ids.numel()
            return forward(input_ids, *args, **kwargs)

        return counted

    def _numbers(self):
        [(paid, cached)] = read(self._path, SUMS)
        quota = self._quotas._by_name.get("ann")
        left = TPM if quota is None else quota.tokens.level().remaining
        return self._num_computed, TPM - left, int(paid), int(cached)

    def ask(self, body):
        """The usage that the client is shown. And tokens: computed, counted for tpm, paid by the
        ledger, of these found in the cache.
        """
        before = self._numbers()
        response = post(self._client, body, headers=bearer("ann"))
        assert response.status_code == 200, response.json
        self._client.wait()
        after = self._numbers()
        return response.json["usage"], *(b - a for a, b in zip(before, after, strict=True))


@pytest.fixture
def paying(make_counted, keys_file, model_path, path):
    return Paying(make_counted, keys_file, model_path, path)


def tokens(number, seed=1):
    rng = random.Random(seed)
    return [rng.randrange(300, 4000) for _ in range(number)]


# Each parameter that makes work, alone and with those that multiply it.
def test_a_client_is_shown_its_own_tokens_and_pays_for_all(paying):
    body = {"prompt": tokens(50), "max_tokens": 4, "ignore_eos": True}
    usage, *_, paid, _ = paying.ask({**body, "negative_prompt": "a b c", "cfg_scale": 2, "n": 2})
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (50, 8)
    assert paid > 50 + 2 * 8


def random_request(rng):
    body = {
        "prompt": [tokens(rng.choice([1, 2, 40, 255, 257, 300]), rng.randrange(4))],
        "max_tokens": rng.randrange(1, 24),
        "n": rng.choice([1, 1, 2, 3]),
        "temperature": rng.choice([0, 1]),
        "seed": rng.randrange(1000),
    }
    if rng.random() < 0.2:
        body["prompt"] *= 2
    if rng.random() < 0.3:
        body |= {"negative_prompt": " ".join(WORDS) * rng.choice([1, 9, 40]), "cfg_scale": 1.2}
    elif rng.random() < 0.3:
        body |= {"echo": True, "logprobs": rng.randrange(3)}
    if rng.random() < 0.3:
        body["stop"] = rng.sample(["e", "a", " ", "return", "()"], 2)
    if rng.random() < 0.3:
        body["banned_strings"] = rng.sample(WORDS, 3)
    if rng.random() < 0.2:
        body["stop_on_loop"] = True
    if rng.random() < 0.2:
        body["best_of"] = body["n"] + 1
    if rng.random() < 0.2:
        body["min_tokens"] = body["max_tokens"] // 2
    if rng.random() < 0.2:
        body |= {
            "ignore_eos": True,
            "min_p": 0.1,
            "repetition_penalty": 1.2,
            "xtc_probability": 0.5,
        }
    if rng.random() < 0.3 and not body.keys() & {"banned_strings", "ignore_eos", "min_tokens"}:
        body["regex"] = rng.choice(["[a-z]{3,20}", "(ab|ac)*", "[0-9]+"])
    elif rng.random() < 0.3 and not body.keys() & {"echo", "negative_prompt", "best_of"}:
        healed = "".join(rng.choices(WORDS, k=rng.choice([1, 9, 300]))) + "def main(se"
        body |= {"token_healing": True, "prompt": [healed] * len(body["prompt"])}
    return body


def most_paid(client_body, paying):
    """Each choice: its prompts whole, and its tokens, which a guided choice pays twice."""
    num_rows = 1 + ("negative_prompt" in client_body)
    negative = len(client_body.get("negative_prompt", "").encode())  # a byte is a token at most
    num_choices = client_body.get("best_of", client_body["n"])
    prompts = sum(len(prompt) + negative for prompt in client_body["prompt"])
    new = len(client_body["prompt"]) * client_body["max_tokens"] * num_rows
    return num_choices * (prompts + new)


@pytest.mark.parametrize(
    "number", [80, pytest.param(500, marks=pytest.mark.hardship)], ids=["few", "many"]
)
def test_random_requests_pay_for_what_is_computed_and_no_more_than_the_docs_say(paying, number):
    rng = random.Random(number)
    for _ in range(number):
        body = random_request(rng)
        usage, computed, counted, paid, cached = paying.ask(body)
        assert computed <= counted <= paid, body
        assert computed <= paid - cached, body
        assert usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"], body
        assert usage["prompt_tokens"] + usage["completion_tokens"] <= paid, body
        assert paid <= most_paid(body, paying), body
