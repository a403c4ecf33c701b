"""What a model writes comes as its tokenizer decodes it: whole, streamed, up to a stop string."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.tokenizers import texts

CLIENTS = 8
A_TEXT = 60  # names


def whole(served, token_ids, **parameters):
    body = {"prompt": served.say(token_ids), "max_tokens": len(token_ids) + 1, **parameters}
    [choice] = served.post("/v1/completions", body)["choices"]
    return choice


def streamed(served, token_ids, **parameters):
    body = {"prompt": served.say(token_ids), "max_tokens": len(token_ids) + 1, **parameters}
    choices = [frame["choices"][0] for frame in served.stream("/v1/completions", body)]
    return {
        "text": "".join(choice["text"] for choice in choices),
        "finish_reason": choices[-1]["finish_reason"],
    }


def assert_same(served, token_ids):
    """Whole, streamed and by /detokenize, text is the reference's."""
    expected = texts.added_text(served.tokenizer, token_ids)
    assert whole(served, token_ids)["text"] == expected
    assert streamed(served, token_ids) == {"text": expected, "finish_reason": "stop"}
    alone = served.post("/detokenize", {"tokens": token_ids})["content"]
    assert alone == served.tokenizer.decode(token_ids, skip_special_tokens=False)


def each(check, cases):
    """Eight clients at once. Raises the first failure."""
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(check, cases))


@pytest.fixture(scope="module")
def names(served, request):
    return texts.sample(served.tokenizer, request.config.getoption("names"))


def test_names_of_all_scripts_come_as_they_are(served, names):
    chunks = [", ".join(names[i : i + A_TEXT]) for i in range(0, len(names), A_TEXT)]
    each(lambda text: assert_same(served, served.ids(text)), chunks)


def test_a_name_alone_comes_as_it_is(served, names):
    each(lambda name: assert_same(served, served.ids(name)), names[:: len(names) // 40])


def test_random_tokens_come_as_the_library_decodes_them(served, names):
    number = len(names) // 20
    cases = texts.random_ids(served.tokenizer, number, 40)
    each(lambda token_ids: assert_same(served, token_ids), cases)


def test_the_bytes_of_logprobs_are_those_of_the_text(served, names):
    def check(text):
        token_ids = served.ids(text)
        body = {
            "messages": [{"role": "user", "content": served.say(token_ids)}],
            **{"logprobs": True, "max_tokens": len(token_ids) + 1},
        }
        [choice] = served.post("/v1/chat/completions", body)["choices"]
        told = b"".join(bytes(t["bytes"] or ()) for t in choice["logprobs"]["content"])
        assert told.decode() == choice["message"]["content"]

    each(check, [", ".join(names[i : i + 10]) for i in range(0, len(names), len(names) // 8)])


def cuts(served, names, number):
    """(text, part of it that is in it once or earlier), at places that no token respects."""
    drawn = random.Random(1)
    for _ in range(number):
        text = ", ".join(drawn.sample(names, drawn.randrange(1, 4)))
        start = drawn.randrange(max(len(text) - 4, 1))
        yield text, text[start : start + drawn.randrange(2, 5)]


def test_a_stop_string_inside_a_word_ends_the_text_there(served, names):
    def check(case):
        text, stop = case
        token_ids = served.ids(text)
        full = texts.added_text(served.tokenizer, token_ids)
        expected = {"text": full[: full.find(stop)], "finish_reason": "stop"}
        assert streamed(served, token_ids, stop=stop) == expected
        found = whole(served, token_ids, stop=stop)
        assert {key: found[key] for key in expected} == expected

    each(check, cuts(served, names, 40))


def test_a_banned_string_inside_a_word_never_comes(served, names):
    """The model would write a text; the token that completes the banned string gives way to `~`."""
    other = served.tokenizer.token_to_id("~")
    for text, banned in cuts(served, names, 40):
        first, *rest = token_ids = served.ids(text)
        full = texts.added_text(served.tokenizer, rest)
        if len(set(token_ids)) < len(token_ids) or banned not in full or "~" in text:
            continue  # a token can be followed by one alone
        followed = zip(token_ids, rest, strict=False)
        served.next = {one: {after: 0.0, other: -9.0} for one, after in followed}
        body = {"prompt": [first], "max_tokens": len(rest) + 1, "temperature": 0}
        free = served.post("/v1/completions", body)["choices"][0]["text"]
        found = served.post("/v1/completions", {**body, "banned_strings": [banned]})
        served.next = {}
        assert free == full
        written = found["choices"][0]["text"]
        assert banned not in written and written.endswith("~")
        kept = written.removesuffix("~").rstrip("\ufffd")
        assert full.startswith(kept) and len(kept) < full.find(banned) + len(banned)
