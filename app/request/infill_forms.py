"""Gaps, and the tokens by which families of models were trained to fill them. Pure.

Tokens and orders are of the models' own papers, tokenizers and examples: StarCoder
(arXiv:2305.06161), CodeLlama (arXiv:2308.12950), DeepSeek-Coder (arXiv:2401.14196), Qwen2.5-Coder
(arXiv:2409.12186), and mistral-common for Codestral.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Extra:
    """A file that the model shall know beside the one with the gap."""

    filename: str
    text: str


@dataclass(frozen=True, slots=True)
class Gap:
    prefix: str
    suffix: str
    begin: str = ""  # of what fills it
    extras: Sequence[Extra] = ()


@dataclass(frozen=True, slots=True)
class Form:
    """`tokens` stand before prefix and suffix, or before the suffix and the prefix where that is
    `suffix_first`; a third one behind both. `ends`: tokens that end the middle, beside the model's
    own. `files`: before a repository's name, and before each file.
    """

    family: str
    tokens: tuple[str, ...]
    suffix_first: bool = False
    ends: tuple[str, ...] = ()
    files: tuple[str, str] | None = None


FORMS = (
    Form(
        "Qwen",
        ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
        ends=(
            "<|endoftext|>",
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
    ),
    Form("CodeLlama", ("▁<PRE>", "▁<SUF>", "▁<MID>"), ends=("▁<EOT>",)),
    Form("Codestral", ("[SUFFIX]", "[PREFIX]"), suffix_first=True),
)
FAMILIES = ", ".join(form.family for form in FORMS)
