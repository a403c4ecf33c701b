"""Which tokens have to do with a string."""

from hypothesis import given, settings
from hypothesis import strategies as st

from switchyard.engine.model.tokens.vocabulary import Vocabulary

data = st.binary(max_size=4).map(lambda d: bytes(b % 3 + 97 for b in d))
vocabularies = st.lists(data, min_size=1, max_size=30)


@settings(max_examples=300)
@given(vocabularies, data)
def test_tokens_that_begin_with_a_text_and_those_that_contain_it(pieces, text):
    vocabulary = Vocabulary(pieces)
    begins = {i for i, piece in enumerate(pieces) if piece and piece.startswith(text)}
    assert set(vocabulary.beginning_with(text)) == begins
    if text:
        contains = {i for i, piece in enumerate(pieces) if text in piece}
        assert set(vocabulary.containing(text)) == contains


@settings(max_examples=300)
@given(vocabularies, data.filter(bool), data)
def test_a_banned_string_tells_which_tokens_would_complete_it(pieces, text, tail):
    banned = Vocabulary(pieces).ban(text.decode())
    would = {i for i, one in enumerate(pieces) if text in tail + one and text not in tail and one}
    told = set(banned.containing)
    for length in range(1, len(text)):
        if tail.endswith(text[:length]):
            told |= set(banned.completing[length])
    if text not in tail:
        assert told == would
