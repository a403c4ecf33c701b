"""Text to tokens and back, and what a user's text can't do."""

import ctypes
import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest
from tokenizers import Tokenizer as Library

from switchyard import engine
from switchyard.engine.model.model_dir import ModelDir
from switchyard.engine.model.tokenizer import Tokenizer
from tests.engine.failing import names

LETTERS = str.maketrans("0123456789", "ghijklmnop")  # digits are words of their own to some


@pytest.fixture(scope="module")
def tokenizer(model_path):
    return Tokenizer(ModelDir.read(model_path))


def test_a_prompt_begins_with_bos_and_decodes_to_itself(tokenizer):
    token_ids = tokenizer.encode("Hello, world! 😀", 100)
    assert token_ids[0] == tokenizer.token_id("<s>")
    assert tokenizer.decode(token_ids) == "Hello, world! 😀"
    assert tokenizer.encode("<s>Hello, world! 😀", 100, parse_special=True) == token_ids


def test_a_special_token_in_a_prompt_is_ordinary_text(tokenizer):
    text = "a <|im_end|> b </s>"
    token_ids = tokenizer.encode(text, 100)
    assert tokenizer.token_id("<|im_end|>") not in token_ids
    assert tokenizer.token_id("</s>") not in token_ids
    assert tokenizer.decode(token_ids) == text


@pytest.fixture
def changed(model_path, tmp_path):
    """A tokenizer whose tokenizer.json `change` has worked on."""

    def make(change, path=model_path):
        path = shutil.copytree(path, tmp_path / "model")
        spec = json.loads((path / "tokenizer.json").read_text())
        change(spec)
        (path / "tokenizer.json").write_text(json.dumps(spec))
        config = json.loads((path / "config.json").read_text())
        config["vocab_size"] = len(spec["model"]["vocab"])
        (path / "config.json").write_text(json.dumps(config))
        return Tokenizer(ModelDir.read(str(path)))

    return make


def added(spec, content, **flags):
    """Make `content`, a word of the vocabulary, a special token."""
    vocab = spec["model"]["vocab"]
    flags = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, **flags}
    token = {"id": len(vocab), "content": content, "special": True, **flags}
    vocab[content] = len(vocab)
    spec["added_tokens"].append(token)


def test_special_tokens_that_overlap_are_ordinary_text_too(changed):
    def overlap(spec):
        for token in ("<a|", "|b>", "|b>|b", "☃"):
            added(spec, token)

    tokenizer = changed(overlap)
    texts = ("<a|b>", "<a|b>|b>", "|b>|b>|b", "<a|<a|b>|b>", "☃", "☃☃|b>", "be <|im_end|> quiet")
    for text in texts:
        user = tokenizer.escape(text)
        token_ids = tokenizer.encode_template(f"<|im_start|>{user}<|im_end|>", 100)
        ends = (tokenizer.token_id("<|im_start|>"), tokenizer.token_id("<|im_end|>"))
        assert (token_ids[0], token_ids[-1]) == ends
        assert tokenizer.control_ids.isdisjoint(token_ids[1:-1])
        assert tokenizer.decode(token_ids) == text


def test_of_special_tokens_that_begin_alike_the_longest_counts(changed):
    """As the library has it, also where a user's text beside it is escaped."""

    def alike(spec):
        for token in ("|b>", "|b>|b"):
            added(spec, token)

    tokenizer = changed(alike)
    for user in ("x", tokenizer.escape("|b>")):
        first, *_, last = tokenizer.encode_template(f"|b>|b{user}|b>", 100)
        assert (first, last) == (tokenizer.token_id("|b>|b"), tokenizer.token_id("|b>"))


@pytest.mark.parametrize(
    ("normalizer", "text"),
    [({"type": "NFKC"}, "be \uff1csay\uff1e quiet"), ({"type": "Lowercase"}, "be <SAY> quiet")],
    ids=str,
)
def test_special_tokens_out_of_the_normalizer_are_ordinary_text_too(changed, normalizer, text):
    def normalize(spec):
        spec["normalizer"] = normalizer
        added(spec, "<say>", normalized=True)

    tokenizer = changed(normalize)
    say = tokenizer.token_id("<say>")
    token_ids = tokenizer.encode_template(f"<say>{tokenizer.escape(text)}<|im_end|>", 100)
    assert token_ids.count(say) == 1 and token_ids[0] == say
    assert tokenizer.decode(token_ids) == "be <say> quiet"


@pytest.mark.parametrize("text", ["<|im_end|> x", "x <|im_end|>", "</s>"])
def test_a_template_may_end_with_an_escaped_text(tokenizer, text):
    token_ids = tokenizer.encode_template(f"<|im_start|>{tokenizer.escape(text)}", 100)
    assert token_ids[1:] == tokenizer.encode(text, 100, add_bos=False)


def test_an_escaped_special_token_leaves_the_rest_of_a_template_as_is(changed, sentencepiece_path):
    """Also where a space is put before the text, or taken from around a special token."""

    def strip(spec):
        added(spec, "<|user|>", rstrip=True)
        added(spec, "<|end|>", lstrip=True)

    tokenizer = changed(strip, sentencepiece_path)
    template = "<s>the class<|user|>\n the {} <|end|> the\n<|im_start|>class\n"
    plain = tokenizer.encode_template(template.format("!"), 100)
    escaped = tokenizer.encode_template(template.format(tokenizer.escape("</s>")), 100)
    place = plain.index(tokenizer.token_id("!"))
    before, after = plain[:place], plain[place + 1 :]
    assert escaped[: len(before)] == before
    assert escaped[-len(after) :] == after
    assert tokenizer.decode(escaped) == tokenizer.decode(plain).replace("!", "</s>")


def test_a_special_token_taken_apart_gets_no_space_of_its_own(changed, sentencepiece_path):
    """In a Unigram vocabulary special tokens are pieces like others."""

    def unigram(spec):
        pieces = sorted(spec["model"]["vocab"], key=spec["model"]["vocab"].get)
        scores = [[piece, -float(len(pieces)) / len(piece)] for piece in pieces]
        spec["model"] = {"type": "Unigram", "vocab": scores, "unk_id": 0, "byte_fallback": True}

    tokenizer = changed(unigram, sentencepiece_path)
    assert tokenizer.token_id("</s>") in tokenizer._batch("x</s>")
    tokens = [tokenizer.token(i) for i in tokenizer._ordinary("x</s>x")]
    assert tokens == ["▁", "x", "<", "/", "s", ">", "x"]


def test_nor_does_it_count_where_the_vocabulary_has_its_text_as_a_piece(changed):
    def whole(spec):
        spec["model"]["ignore_merges"] = True  # a whole word that is in the vocabulary is one token
        spec["pre_tokenizer"]["use_regex"] = False

    tokenizer = changed(whole)
    [piece] = tokenizer._batch("</s>")
    assert piece == tokenizer.token_id("</s>")
    assert piece not in tokenizer.encode("</s>", 100)
    assert tokenizer.decode(tokenizer.encode("</s>", 100)) == "</s>"
    template = f"<|im_start|>{tokenizer.escape('</s>')}<|im_end|>"
    assert piece not in tokenizer.encode_template(template, 100)


def test_a_text_without_special_tokens_is_not_touched_by_escaping(tokenizer):
    assert tokenizer.escape("plain < text | here >") == "plain < text | here >"


def test_the_escape_character_itself_is_rejected(tokenizer):
    for encode in (tokenizer.escape, lambda text: tokenizer.encode(text, 100)):
        with pytest.raises(engine.InvalidJob, match="U\\+FDD0"):
            encode("a\ufdd0b")


def test_escaped_and_plain_templates_encode_alike(tokenizer):
    """The two ways through a template agree where both are possible."""
    text = "<|im_start|>user\nHello, world!<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer._encode_escaped(text) == list(tokenizer.encode_template(text, 100))


def test_more_tokens_than_the_limit_are_rejected_also_when_the_text_is_huge(tokenizer):
    assert len(tokenizer.encode("a b c", 10)) <= 10
    for text in ("a b " * 10, "word " * 20, "word " * 1_000_000):
        with pytest.raises(engine.PromptTooLong, match="more than 10 tokens") as told:
            tokenizer.encode(text, 10)
        assert told.value.limit == 10 < told.value.prompt_tokens
        assert told.value.is_whole == (len(text) < 50)
        with pytest.raises(engine.PromptTooLong, match="more than 10 tokens"):
            tokenizer.encode_template(text, 10)


@pytest.mark.parametrize("word", ["word ", "The quick brown fox, and so on. ", "x", "😀"])
def test_no_more_of_a_text_is_encoded_than_shows_that_it_is_too_long(model_path, word):
    tokenizer = Tokenizer(ModelDir.read(model_path))
    tokenizer._tokenizer = library = Mock(wraps=tokenizer._tokenizer)
    num_tokens = len(tokenizer.encode(word * 100, 10_000)) / 100
    length = 10_000 * len(word) / num_tokens  # of as many tokens as there may be
    library.reset_mock()
    with pytest.raises(engine.PromptTooLong):
        tokenizer.encode(word * (2_000_000 // len(word)), 10_000)
    texts = [text for call in library.encode_batch.call_args_list for text in call.args[0]]
    assert 0 < sum(map(len, texts)) < 1.5 * length + 10_000


@pytest.mark.parametrize("word", [" ", "-", "word ", "<|im_start|>"])
def test_a_long_text_of_few_tokens_is_not_too_long(tokenizer, word):
    """Also where special tokens are cut through."""
    num_tokens = len(tokenizer.encode_template(word * 20_000, 100_000))
    assert len(tokenizer.encode_template(word * 20_000, num_tokens)) == num_tokens


def test_a_text_that_the_library_panics_at_is_refused(changed):
    """Which is no Exception; a regular expression may try so long that it does."""

    def backtrack(spec):
        pattern = {"Regex": r"(?:a|aa)+\b#"}
        split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
        spec["pre_tokenizer"] = split

    tokenizer = changed(backtrack)
    text = "a" * 50
    for encode in (
        lambda: tokenizer.encode(text, 100),
        lambda: tokenizer.encode(text, 100, parse_special=True),
        lambda: tokenizer.encode_template(text, 100),
        lambda: tokenizer.check_length(text, 5),
    ):
        told = r"can't read the text.*retry-limit"
        with pytest.raises(engine.InvalidJob, match=told, check=names("prompt")):
            encode()
    assert tokenizer.encode("b", 100)


def test_what_the_file_says_of_truncation_and_padding_is_not_for_a_server(changed):
    def limit(spec):
        library = Library.from_str(json.dumps(spec))
        library.enable_truncation(4)
        library.enable_padding(length=50, pad_token="<pad>")
        spec |= json.loads(library.to_str())

    tokenizer = changed(limit)
    text = "the quick brown fox jumps over a lazy dog"
    token_ids = tokenizer.encode(text, 100)
    assert tokenizer.decode(token_ids) == text and tokenizer.token_id("<pad>") not in token_ids
    assert tokenizer.encode_template(text, 100) == token_ids[1:]


def test_other_threads_run_while_a_long_text_is_encoded(tokenizer):
    """The engine's above all."""
    done, turns = threading.Event(), []

    def take_turns():
        while not done.wait(0.001):
            turns.append(None)

    for encode in (tokenizer.encode, tokenizer.encode_template):
        done.clear()
        turns.clear()
        thread = threading.Thread(target=take_turns)
        thread.start()
        encode("the quick brown fox </s> jumps " * 20_000, 10_000_000)
        done.set()
        thread.join()
        assert len(turns) > 50


def test_many_threads_encode_at_the_same_time(tokenizer):
    def encode(_=None):
        return [tokenizer.encode(f"text number {i} <|im_end|>", 100) for i in range(50)]

    expected = encode()
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(encode, range(8))) == [expected] * 8


# Pieces


class MallInfo(ctypes.Structure):
    """glibc's struct mallinfo2, whose eighth field is what is in use."""

    _fields_ = (("fields", ctypes.c_size_t * 10),)


def bytes_in_use():
    """Bytes that this process has from malloc, which Python's small objects don't use."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = MallInfo
    return mallinfo().fields[7]


def test_a_thread_keeps_none_of_the_words_that_it_has_encoded(tokenizer):
    def encode(num_words):
        for first in range(0, num_words, 100):
            text = " ".join(f"{n:x}".translate(LETTERS) for n in range(first, first + 100))
            tokenizer.encode(text, 10_000)
            tokenizer.encode_template(text, 10_000)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(encode, 200).result()
        before = bytes_in_use()
        thread.submit(encode, 10_000).result()
        assert bytes_in_use() - before < 1_000_000


def test_a_special_token_and_an_unknown_id_add_nothing(tokenizer):
    assert tokenizer.piece(tokenizer.token_id("</s>")) == b""
    assert tokenizer.piece(10**6) == b""


def test_a_breaker_that_no_token_contains_is_the_last_token_of_its_text(tokenizer):
    text = "no such token"
    *others, last = tokenizer.encode(text, 100, add_bos=False)
    assert last not in others and not tokenizer.vocabulary.containing(text.encode())
    assert tokenizer.breakers([text]) == (last,)
    within = tokenizer.vocabulary.containing(b"th")
    assert len(within) > 1
    assert tokenizer.breakers([text, "th"]) == tuple(sorted({last, *within}))


def test_pieces_are_what_the_generator_tells(model_path, sentencepiece_path):
    from switchyard.engine.backends.exl2 import cpu

    cpu.install()
    from exllamav2 import ExLlamaV2Config, ExLlamaV2Tokenizer

    for path in (model_path, sentencepiece_path):
        own = Tokenizer(ModelDir.read(path))
        theirs = ExLlamaV2Tokenizer(ExLlamaV2Config(path)).get_id_to_piece_list()
        for token_id, piece in enumerate(theirs[: len(own.pieces)]):
            if "\ufffd" not in piece:
                assert own.piece(token_id).decode() == piece, token_id
