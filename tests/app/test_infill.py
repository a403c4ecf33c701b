"""Prompts with a gap: as each family's own tokenizer or paper has them."""

import pytest

from switchyard import engine
from switchyard.app.exceptions import BadRequest
from switchyard.app.request.infill import infill
from switchyard.app.request.infill_forms import Extra, Gap
from switchyard.engine.messages import ModelInfo
from tests.app.refused import error_of
from tests.conftest import DEMO
from tests.scripted import ScriptedBackend

QWEN = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
QWEN += ["<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"]
DEEPSEEK = [f"<\uff5cfim▁{name}\uff5c>" for name in ("begin", "hole", "end")]
STARCODER = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<fim_pad>", "<|endoftext|>"]
STARCODER_2 = [*STARCODER, "<repo_name>", "<file_sep>"]
CODELLAMA = ["▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"]
CODESTRAL = ["[SUFFIX]", "[MIDDLE]", "[PREFIX]"]

PREFIX, SUFFIX = "def add(a, b):\n    return ", "\n\nprint(add(1, 2))\n"


@pytest.fixture
def filled(with_tokens):
    """The text of a gap's prompt behind its first token, special ones in full; and its ends."""

    def filled(names, gap, path=DEMO):
        tokenizer = read(with_tokens(names, path))
        found = infill(tokenizer, gap, 2048, "suffix")
        bos = tokenizer.encode("", 1)
        assert found.token_ids[: len(bos)] == bos
        text = spelled(tokenizer, found.token_ids[len(bos) :])
        return text, [tokenizer.token(i) for i in found.ends]

    return filled


def read(path):
    return engine.Tokenizer(engine.ModelDir.read(path))


def spelled(tokenizer, token_ids):
    """With special tokens in full, all else as text."""
    every = [*QWEN, *DEEPSEEK, *STARCODER_2, *CODELLAMA, *CODESTRAL]
    names = {tokenizer.token_id(name): name for name in every}
    parts = [names.get(i, "").encode() or tokenizer.piece(i) for i in token_ids]
    return b"".join(parts).decode()


@pytest.mark.parametrize(
    ("names", "prompt", "ends"),
    [
        # QwenLM/Qwen2.5-Coder, examples/Qwen2.5-Coder-fim.py, with all that ends its answer there
        (
            [*QWEN, "<|endoftext|>"],
            "<|fim_prefix|>{}<|fim_suffix|>{}<|fim_middle|>",
            {*QWEN, "<|endoftext|>", "<|im_end|>"},
        ),
        # deepseek-ai/DeepSeek-Coder, README.md, "Code Insertion"
        (DEEPSEEK, "{}".join(DEEPSEEK), set()),
        # arXiv:2305.06161, and the model card of bigcode/starcoder, "Fill-in-the-middle"
        (STARCODER, "<fim_prefix>{}<fim_suffix>{}<fim_middle>", {*STARCODER[3:]}),
    ],
    ids=["Qwen", "DeepSeek", "StarCoder"],
)
def test_prefix_and_suffix_stand_between_the_familys_tokens(filled, names, prompt, ends):
    text, found = filled(names, Gap(PREFIX, SUFFIX))
    assert (text, set(found)) == (prompt.format(PREFIX, SUFFIX), ends)


@pytest.mark.parametrize(
    ("names", "prompt", "ends"),
    [
        # meta-llama/codellama, llama/generation.py, infilling_prompt_tokens: a space before the
        # prefix, as before each text, and none before the suffix; nor before the middle's begin
        (CODELLAMA, "▁<PRE> {prefix}▁<SUF>{suffix}▁<MID>m", ["▁<EOT>"]),
        (CODESTRAL, "[SUFFIX]{suffix}[PREFIX] {prefix}m", []),
    ],
    ids=["CodeLlama", "Codestral"],
)
@pytest.mark.parametrize(
    ("prefix", "suffix"),
    # the second: mistralai/mistral-common, tests/test_fim_tokenizer.py, which has
    # "<s>[SUFFIX]return▁a▁+▁b[PREFIX]▁def▁f(" for it
    [("class the", "the class"), ("def f(", "return a + b")],
)
def test_no_space_is_put_before_the_suffix_and_the_middle(
    filled, sentencepiece_path, names, prompt, ends, prefix, suffix
):
    found = filled(names, Gap(prefix, suffix, "m"), sentencepiece_path)
    assert found == (prompt.format(prefix=prefix, suffix=suffix), ends)


@pytest.mark.parametrize(
    ("names", "prompt"),
    [
        # QwenLM/Qwen2.5-Coder, examples/Qwen2.5-Coder-repolevel-fim.py
        (
            QWEN,
            "<|repo_name|>myproject\n<|file_sep|>a.py\nx = 1\n<|file_sep|>b.py\ny = 2\n"
            "<|file_sep|>filename\n<|fim_prefix|>p<|fim_suffix|>s<|fim_middle|>    m",
        ),
        # StarCoder2, arXiv:2402.19173, 5.1: the name in the gap, newlines behind names alone
        (
            STARCODER_2,
            "<repo_name>myproject<file_sep>a.py\nx = 1<file_sep>b.py\ny = 2\n"
            "<file_sep><fim_prefix>filename\np<fim_suffix>s<fim_middle>    m",
        ),
        # Which knows no files.
        (
            DEEPSEEK,
            "\n\n--- a.py ---\n\nx = 1\n\n--- b.py ---\n\ny = 2\n{}p{}s{}    m".format(*DEEPSEEK),
        ),
    ],
    ids=["Qwen", "StarCoder2", "DeepSeek"],
)
def test_other_files_come_first_and_what_has_begun_last(filled, names, prompt):
    """By llama.cpp's names of repository and file."""
    extras = [Extra("a.py", "x = 1"), Extra("b.py", "y = 2\n")]
    assert filled(names, Gap("p", "s", "    m", extras))[0] == prompt


@pytest.mark.parametrize("extras", [[], [Extra("a.py", "x")]])
def test_a_name_stands_in_the_gap_beside_other_files_that_have_tokens(filled, extras):
    """StarCoder's first version has no tokens for files."""
    names = STARCODER if extras else STARCODER_2
    assert "filename" not in filled(names, Gap("p", "s", extras=extras))[0]


def test_what_a_text_says_is_no_token_of_the_gap(with_tokens):
    tokenizer = read(with_tokens(QWEN))
    found = infill(tokenizer, Gap(QWEN[2], "s"), 2048, "suffix")
    assert found.token_ids.count(tokenizer.token_id(QWEN[2])) == 1


def test_a_model_without_such_tokens_says_which_families_can():
    with pytest.raises(BadRequest, match="Qwen, DeepSeek, StarCoder, CodeLlama, Codestral") as told:
        infill(read(DEMO), Gap("p", "s"), 2048, "suffix")
    assert told.value.param == "suffix"


def test_parts_that_fit_are_too_long_together(with_tokens):
    tokenizer = read(with_tokens(QWEN))
    size = len(infill(tokenizer, Gap(PREFIX, SUFFIX), 2048, "suffix").token_ids)
    infill(tokenizer, Gap(PREFIX, SUFFIX), size, "suffix")
    with pytest.raises(engine.PromptTooLong) as told:
        infill(tokenizer, Gap(PREFIX, SUFFIX), size - 1, "suffix")
    assert (told.value.prompt_tokens, told.value.limit) == (size, size - 1)


@pytest.mark.parameter("suffix", "/v1/completions")
def test_a_completion_fills_the_gap_before_its_suffix(make_client, with_tokens):
    backend = ScriptedBackend(info=ModelInfo(2048, 5000, 256, 64, "scripted"))
    client = make_client(backend, path=with_tokens(QWEN))
    body = {"prompt": ["a", "b"], "suffix": "c", "max_tokens": 2, "stop_token_ids": [7]}
    response = client.post("/v1/completions", json=body)
    assert [choice["text"] for choice in response.json["choices"]] == ["0 1 ", "0 1 "]
    tokenizer = client.models.get().tokenizer
    for job, text in zip(backend.enqueued, "ab", strict=True):
        plain = infill(tokenizer, Gap(text, "c"), 2048, "suffix")
        assert job.prompt == plain.token_ids
        assert job.stop_token_ids == (7, *plain.ends)


@pytest.mark.parametrize(
    "change",
    [{"echo": True}, {"prompt": [1, 2]}, {"prompt": ["x", [1]]}, {"suffix": 5}],
    ids=str,
)
def test_a_suffix_that_can_not_be_honoured_is_refused(make_client, with_tokens, change):
    client = make_client(path=with_tokens(QWEN))
    response = client.post("/v1/completions", json={"prompt": "x", "suffix": "y", **change})
    assert error_of(response)["param"] in ("suffix", "prompt")
    assert not client.backend.enqueued
