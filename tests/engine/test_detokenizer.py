"""The text of a completion, token by token, against its definition on the whole text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchyard.engine.backends.exl.detokenizer import Detokenizer
from switchyard.engine.job import Healing, Span
from tests.scripted import job

short = st.text("ab ", min_size=1, max_size=4)


def detokenizer_of(pieces, one, named=None):
    """Token i is `pieces[i]`."""
    return Detokenizer([piece.encode() for piece in pieces], one, named)


def cut(data, text):
    """`text` as pieces that may cut its characters."""
    encoded = text.encode()
    places = data.draw(st.sets(st.integers(1, max(len(encoded) - 1, 1))))
    starts = [0, *sorted(place for place in places if place < len(encoded))]
    return [encoded[a:b] for a, b in zip(starts, [*starts[1:], len(encoded)], strict=True)]


def push_all(detokenizer, number, by_stop_token=True):
    """All (text, token ids) of so many tokens, up to a stop."""
    parts = []
    for i in range(number):
        parts.append(detokenizer.push(i, is_last=not by_stop_token and i == number - 1))
        if detokenizer.stop is not None:
            return parts
    return [*parts, detokenizer.flush()] if by_stop_token else parts


def whole(parts):
    """Their text and token ids."""
    return "".join(text for text, _ in parts), [i for _, ids in parts for i in ids]


def told(pieces, stop_strings=(), min_new_tokens=0, by_stop_token=False):
    """All (text, token ids) of a job that draws each of `pieces` once, and its stop string."""
    one = job(stop_strings=stop_strings, min_new_tokens=min_new_tokens)
    detokenizer = detokenizer_of(pieces, one)
    return push_all(detokenizer, len(pieces), by_stop_token), detokenizer.stop


def expected(pieces, stop_strings, min_new_tokens):
    """The first stop string of the text that doesn't end before the last of the fewest tokens."""
    text = "".join(pieces)
    free = len("".join(pieces[: max(min_new_tokens - 1, 0)]))
    starts = [
        start
        for s in stop_strings
        for start in range(len(text))
        if text.startswith(s, start) and start + len(s) > free
    ]
    return text[: min(starts, default=len(text))], bool(starts)


@settings(max_examples=600)
@given(
    st.lists(st.text("ab ", max_size=3), min_size=1, max_size=12),
    st.lists(short, max_size=4),
    st.integers(0, 8),
    st.booleans(),
)
def test_the_text_ends_before_the_stop_string_that_begins_first(
    pieces, stop_strings, min_new_tokens, by_stop_token
):
    parts, stop_string = told(pieces, tuple(stop_strings), min_new_tokens, by_stop_token)
    text, is_stopped = expected(pieces, stop_strings, min_new_tokens)
    found, token_ids = whole(parts)
    assert (found, stop_string is not None) == (text, is_stopped)
    assert token_ids == list(range(len(token_ids)))
    if not is_stopped:
        assert len(token_ids) == len(pieces)
        assert all(part == "".join(pieces[i] for i in ids) for part, ids in parts)


def expected_outside(text, stops, tokens):
    """The text up to the first stop outside of `((…)`, and whether there is one. `tokens`: places
    and lengths of those that are stops.
    """
    begin = text.find("((")
    if text.lstrip(" ").startswith("["):
        begin = text.find("[")
    before = text if begin < 0 else text[:begin].rstrip(" ")
    starts = [at for s in stops if (at := before.find(s)) >= 0]
    starts += [at for at, length in tokens if 0 <= at <= len(before) - length]
    if starts or begin < 0:
        return before[: min(starts, default=len(before))], bool(starts)
    end = text.find({"(": ")", "[": "]"}[text[begin]], begin)
    if end < 0:
        return text, False
    rest = text[end + 1 :]
    head = text[: len(text) - len(rest.lstrip(" "))]
    # Thoughts come first or not at all: `x` keeps another span of them away.
    is_first = not text[:begin].strip(" ") and text[begin] == "["
    moved = [(at - len(head), n) for at, n in tokens if at >= len(head)]
    if not is_first:
        moved = [(at + 1, n) for at, n in moved]
    tail, is_stopped = expected_outside(("" if is_first else "x") + text[len(head) :], stops, moved)
    return head + tail[not is_first :], is_stopped


@settings(max_examples=900)
@given(
    st.lists(st.text("ab (()[]", max_size=4), min_size=1, max_size=12),
    st.lists(st.text("ab (", min_size=1, max_size=3), max_size=3),
    st.sets(st.integers(0, 11)),
    st.booleans(),
)
def test_no_stop_counts_in_thoughts_and_calls_however_tokens_cut_them(
    pieces, stops, stop_token_ids, by_token
):
    spans = (Span("[", "]", is_first=True), Span("((", ")"))
    one = job(stop_strings=tuple(stops), stop_token_ids=(99, *stop_token_ids), spans=spans)
    detokenizer = detokenizer_of(pieces, one)
    text, token_ids = whole(push_all(detokenizer, len(pieces), by_token))
    found = text, detokenizer.stop is not None
    tokens = [(len("".join(pieces[:i])), len(pieces[i])) for i in sorted(detokenizer.unsure)]
    assert found == expected_outside("".join(pieces), stops, tokens)
    assert token_ids == list(range(len(token_ids)))


@pytest.mark.parametrize(
    ("pieces", "stop_strings", "texts", "stop"),
    [
        # No more is held back than may become a stop string.
        ("ax----b", ("---!",), ["a", "x", "", "", "", "-", "---b"], None),
        # One waits only for another that began before it, and not for a longer one.
        ("xbcz", ("bc", "c!", "abcd"), ["x", "", ""], "bc"),
        ("abcz", ("bc", "abcd"), ["", "", "", "a"], "bc"),
        (("ab", "x"), ("ab", "abc"), [""], "ab"),
    ],
)
def test_a_text_comes_as_soon_as_it_is_certain(pieces, stop_strings, texts, stop):
    parts, found = told([*pieces], stop_strings)
    assert ([text for text, _ in parts], found) == (texts, stop)


def test_a_stop_string_can_be_part_of_the_text():
    one = job(stop_strings=("bc",), include_stop=True)
    detokenizer = detokenizer_of(["a", "b", "cd"], one)
    assert whole(push_all(detokenizer, 3)) == ("abc", [0, 1, 2])
    assert detokenizer.stop == "bc"


def test_a_special_token_is_part_of_the_text_where_it_shall_be_shown():
    pieces, contents = ["é".encode()[:1], b""], {1: b"[CALL]"}
    detokenizer = Detokenizer(pieces, job(shown_token_ids=(1,)), contents)
    parts = [detokenizer.push(i) for i in (1, 0, 1, 1)]
    assert parts == [("[CALL]", (1,)), ("", ()), ("\ufffd[CALL]", (0, 1)), ("[CALL]", (1,))]
    assert Detokenizer(pieces, job(), contents).push(1) == ("", (1,))


def test_what_a_healed_prompt_ends_with_is_not_told_again_though_text_comes_late():
    e = "é".encode()
    detokenizer = Detokenizer([e[:1], e[1:] + b"!", e], job(healing=Healing("é", (0,))))
    parts = [detokenizer.push(i) for i in (0, 1, 2)]
    assert parts == [("", ()), ("!", (0, 1)), ("é", (2,))]


@settings(max_examples=500)
@given(st.text("aé€똠😀", max_size=8), st.data(), st.booleans())
def test_characters_come_as_soon_as_they_are_whole_however_tokens_cut_them(text, data, is_stopped):
    """No token is told twice or left out, and each text has a token."""
    pieces = cut(data, text)
    detokenizer = Detokenizer(pieces, job(stop_strings=("!",) if is_stopped else ()))
    parts = []
    for i in range(len(pieces)):
        parts.append(detokenizer.push(i))
        assert whole(parts)[0] == b"".join(pieces[: i + 1]).decode(errors="ignore")
    parts.append(detokenizer.flush())
    assert whole(parts) == (text, list(range(len(pieces))))
    assert all(ids for part, ids in parts if part)


@settings(max_examples=500)
@given(st.text("aé똠😀", max_size=8), st.text("aé똠😀", min_size=1, max_size=3), st.data())
def test_a_stop_string_counts_however_tokens_cut_its_characters(text, stop_string, data):
    pieces = cut(data, text)
    detokenizer = Detokenizer(pieces, job(stop_strings=(stop_string,)))
    found, _ = whole(push_all(detokenizer, len(pieces)))
    assert found == text.partition(stop_string)[0]
    assert (detokenizer.stop is not None) == (stop_string in text)
