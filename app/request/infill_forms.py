"""Gaps, and the tokens with which each model family was trained to fill them. Pure.

Tokens and their order come from the models' own papers, tokenizers and examples: StarCoder
(arXiv:2305.06161), StarCoder2 (arXiv:2402.19173), CodeLlama (arXiv:2308.12950), DeepSeek-Coder
(arXiv:2401.14196), Qwen2.5-Coder (arXiv:2409.12186), and mistral-common for Codestral.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Extra:
    """Another file, as context for the file with the gap."""

    filename: str
    text: str


@dataclass(frozen=True, slots=True)
class Gap:
    prefix: str
    suffix: str
    begin: str = ""  # the beginning of the middle, which the model continues
    extras: Sequence[Extra] = ()


@dataclass(frozen=True, slots=True)
class Form:
    """The tokens of one family of models.

    `tokens`: the first is put before the prefix, the second before the suffix, and a third after
    both. With `suffix_first`, the first token is put before the suffix, and the second before the
    prefix. `ends`: tokens that end the middle, in addition to the model's own end tokens. `files`:
    the token before a repository's name, and the token before each file. `name_in_gap`: the name of
    the file with the gap follows the token before the prefix, and a newline follows only names of
    files.
    """

    family: str
    tokens: tuple[str, ...]
    suffix_first: bool = False
    ends: tuple[str, ...] = ()
    files: tuple[str, str] | None = None
    name_in_gap: bool = False


FORMS = (
    Form(
        "Qwen",
        ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
        ends=(
            *("<|endoftext|>", "<|im_end|>"),
            *("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>"),
            *("<|repo_name|>", "<|file_sep|>"),
        ),
        files=("<|repo_name|>", "<|file_sep|>"),
    ),
    Form("DeepSeek", tuple(f"<\uff5cfim▁{part}\uff5c>" for part in ("begin", "hole", "end"))),
    Form(
        "StarCoder",
        ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
        ends=("<|endoftext|>", "<fim_pad>", "<file_sep>"),
        files=("<repo_name>", "<file_sep>"),
        name_in_gap=True,
    ),
    Form("CodeLlama", ("▁<PRE>", "▁<SUF>", "▁<MID>"), ends=("▁<EOT>",)),
    Form("Codestral", ("[SUFFIX]", "[PREFIX]"), suffix_first=True),
)
FAMILIES = ", ".join(form.family for form in FORMS)
