"""The text of a completion, token by token, against its definition on the whole text."""

from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

from switchyard.engine.backends.exl2.detokenizer import Detokenizer
from switchyard.engine.job import Healing
from tests.scripted import job

short = st.text("ab ", min_size=1, max_size=4)


def tokenizer_of(pieces):
    """Token i is `pieces[i]`, whatever surrounds it."""

    def no_decode(token_ids):
        assert not token_ids, "whole characters are not decoded again"
        return ""

    return SimpleNamespace(
        get_id_to_piece_list=lambda: pieces,
        tokenizer_model=SimpleNamespace(hf_tokenizer=SimpleNamespace(decode=no_decode)),
    )


def told(pieces, stop_strings=(), min_new_tokens=0, by_stop_token=False):
    """All (text, token ids) of a job that draws each of `pieces` once, and its stop string."""
    one = job(stop_strings=stop_strings, min_new_tokens=min_new_tokens)
    detokenizer = Detokenizer(tokenizer_of(pieces), one)
    parts = []
    for i in range(len(pieces)):
        is_last = i == len(pieces) - 1 and not by_stop_token
        parts.append(detokenizer.push(i, is_last))
        if detokenizer.stop_string is not None:
            return parts, detokenizer.stop_string
    if by_stop_token:
        parts.append(detokenizer.flush())
    return parts, detokenizer.stop_string


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


@settings(max_examples=2000)
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
    assert "".join(part for part, _ in parts) == text
    assert (stop_string is not None) == is_stopped
    token_ids = [i for _, ids in parts for i in ids]
    assert token_ids == list(range(len(token_ids)))
    if not is_stopped:
        assert len(token_ids) == len(pieces)
        assert all(part == "".join(pieces[i] for i in ids) for part, ids in parts)


def test_no_more_is_held_back_than_may_become_a_stop_string():
    parts, _ = told(["a", "x", "-", "-", "-", "-", "b"], stop_strings=("---!",))
    assert [text for text, _ in parts] == ["a", "x", "", "", "", "-", "---b"]


def test_a_stop_string_waits_only_for_another_that_began_before_it():
    parts, stop_string = told(["x", "b", "c", "z"], stop_strings=("bc", "c!", "abcd"))
    assert ([text for text, _ in parts], stop_string) == (["x", "", ""], "bc")
    parts, stop_string = told(["a", "b", "c", "z"], stop_strings=("bc", "abcd"))
    assert ([text for text, _ in parts], stop_string) == (["", "", "", "a"], "bc")


def test_a_stop_string_does_not_wait_for_a_longer_one():
    detokenizer = Detokenizer(tokenizer_of(["ab", "x"]), job(stop_strings=("ab", "abc")))
    assert detokenizer.push(0)[0] == "" and detokenizer.stop_string == "ab"


def test_a_stop_string_can_be_part_of_the_text():
    one = job(stop_strings=("bc",), include_stop=True)
    detokenizer = Detokenizer(tokenizer_of(["a", "b", "cd"]), one)
    parts = [detokenizer.push(i) for i in range(3)]
    assert ("".join(text for text, _ in parts), detokenizer.stop_string) == ("abc", "bc")
    assert [i for _, ids in parts for i in ids] == [0, 1, 2]


def test_a_special_token_is_part_of_the_text_where_it_shall_be_shown():
    hf_tokenizer = SimpleNamespace(
        id_to_token=["é", "[CALL]"].__getitem__, decode=lambda ids: "\ufffd" * len(ids)
    )
    tokenizer = SimpleNamespace(
        get_id_to_piece_list=lambda: ["\ufffd", ""],
        tokenizer_model=SimpleNamespace(hf_tokenizer=hf_tokenizer),
    )
    detokenizer = Detokenizer(tokenizer, job(shown_token_ids=(1,)))
    parts = [detokenizer.push(i) for i in (1, 0, 1, 1)]
    assert parts == [("[CALL]", (1,)), ("", ()), ("\ufffd[CALL]", (0, 1)), ("[CALL]", (1,))]
    assert Detokenizer(tokenizer, job()).push(1) == ("", (1,))


def test_what_a_healed_prompt_ends_with_is_not_told_again_though_text_comes_late():
    hf_tokenizer = SimpleNamespace(
        decode=lambda ids: {(): "", (0, 1): "é!"}.get(tuple(ids), "\ufffd")
    )
    tokenizer = SimpleNamespace(
        get_id_to_piece_list=lambda: ["\ufffd", "\ufffd", "é"],
        tokenizer_model=SimpleNamespace(hf_tokenizer=hf_tokenizer),
    )
    detokenizer = Detokenizer(tokenizer, job(healing=Healing("é", (0,))))
    parts = [detokenizer.push(i) for i in (0, 1, 2)]
    assert parts == [("", ()), ("!", (0, 1)), ("é", (2,))]
