"""The text of tokens: the library's, but that no valid character is lost."""

import json
import random
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library

from switchyard.engine.model.model_dir import ModelDir
from switchyard.engine.model.tokenizer import Tokenizer
from switchyard.engine.model.tokens.decoder import TextDecoder
from tests.hostile import edit

SPACE, METASPACE = "\u2581", {"type": "Metaspace", "replacement": "\u2581", "split": False}
REPLACE = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
BYTES = [REPLACE, {"type": "ByteFallback"}, {"type": "Fuse"}]


def sequence(*decoders):
    return {"type": "Sequence", "decoders": [*decoders]}


# Changes of the demo's tokenizer, or of one with byte fallback
FAMILIES = {
    "byte level": None,
    "llama 2": sequence(*BYTES, {"type": "Strip", "content": " ", "start": 1, "stop": 0}),
    "gemma": sequence(*BYTES),
    "strips more": sequence(*BYTES, {"type": "Strip", "content": " ", "start": 3, "stop": 0}),
    "metaspace": {**METASPACE, "prepend_scheme": "always"},
    "metaspace, never": {**METASPACE, "prepend_scheme": "never"},
    "word pieces": {"type": "WordPiece", "prefix": "##", "cleanup": True},
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, model_path, sentencepiece_path, tmp_path_factory):
    """The model's own tokenizer, and the library's."""
    decoder = FAMILIES[request.param]
    source = model_path if decoder is None else sentencepiece_path
    path = shutil.copytree(source, tmp_path_factory.mktemp("family") / "model")
    if decoder is not None:
        edit(path / "tokenizer.json", decoder=decoder)
    library = Library.from_file(str(path / "tokenizer.json"))
    return Tokenizer(ModelDir.read(str(path))), library


def streamed(tokenizer, token_ids, skip_special):
    named = {} if skip_special else tokenizer.contents
    decoder = TextDecoder(tokenizer.pieces, named, tokenizer._beginning)
    return "".join([*map(decoder.push, token_ids), decoder.finish()])


texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\ufdd0\ufffd"))


@settings(max_examples=300)
@given(text=texts | st.text(" a\n \u2581<|im_end>é똠😀"))
def test_a_text_is_the_librarys_whole_and_streamed(family, text):
    tokenizer, library = family
    token_ids = library.encode(text, add_special_tokens=False).ids
    for skip_special in (True, False):
        expected = library.decode(token_ids, skip_special_tokens=skip_special)
        assert tokenizer.decode(token_ids, skip_special) == expected
        if tokenizer._beginning is not None:
            assert streamed(tokenizer, token_ids, skip_special) == expected


def test_the_text_of_any_tokens_is_the_librarys_but_for_broken_bytes(family):
    tokenizer, library = family
    draw = random.Random(1)
    for _ in range(1000):
        token_ids = draw.choices(range(len(tokenizer.pieces)), k=draw.randrange(1, 12))
        for skip_special in (True, False):
            expected = library.decode(token_ids, skip_special_tokens=skip_special)
            text = tokenizer.decode(token_ids, skip_special)
            if "\ufffd" not in text:
                assert text == expected
            if tokenizer._beginning is not None:
                assert streamed(tokenizer, token_ids, skip_special) == text


def test_valid_characters_between_broken_bytes_stay():
    pieces = [bytes([i]) for i in range(256)]
    data = b"a\xff\xe2\x82\xac\x80b\xf0\x9fc"
    for text in (TextDecoder(pieces).whole(data), "".join(map(TextDecoder(pieces).push, data))):
        assert text == "a\ufffd€\ufffdb\ufffdc"


def test_an_added_token_is_what_it_spells_though_its_characters_name_bytes(directory):
    spec = json.loads((directory / "tokenizer.json").read_text())
    flags = dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word", "special"), False)
    token_id = max(*(one["id"] + 1 for one in spec["added_tokens"]), len(spec["model"]["vocab"]))
    added = [*spec["added_tokens"], {"id": token_id, "content": "é", **flags}]
    edit(directory / "tokenizer.json", added_tokens=added)
    tokenizer = Tokenizer(ModelDir.read(str(directory)))
    assert tokenizer.decode(tokenizer.encode("caf é", 100)) == "caf é"
