"""The served models in Codex's format, with the members of Codex's `ModelInfo` that have no default
(codex-rs/protocol/src/openai_models.rs, since 0.169). Pure.
"""

from typing import Any, Literal

from typing_extensions import TypedDict  # required by pydantic before Python 3.12

from switchyard import engine

# Used in place of Codex's own instructions, which apply to models without an entry.
INSTRUCTIONS = """\
You are a coding agent in Codex CLI, on the user's computer. Work with the tools that you are
offered: run commands to look at files, to change them and to try them. Look before you change
anything, follow AGENTS.md where there is one, and make the smallest change that does what is
asked, in the style of the code around it. Leave alone what you were not asked about, and never
undo changes that are not yours. Run the tests of what you have changed, where there are any. Go
on until the task is done; if it can't be, say what is missing. End with a short summary of what
you did and found, as plain text."""
OUTPUT_TOKENS = 10_000  # maximum number of tokens in a tool's output: Codex's own limit


class ReasoningLevel(TypedDict):
    effort: str
    description: str


class TruncationPolicy(TypedDict):
    mode: Literal["tokens"]
    limit: int


class CodexModel(TypedDict):
    slug: str
    display_name: str
    description: str | None
    default_reasoning_level: str | None
    supported_reasoning_levels: list[ReasoningLevel]
    shell_type: Literal["default"]
    visibility: Literal["list"]
    supported_in_api: Literal[True]
    priority: int
    availability_nux: None
    upgrade: None
    base_instructions: str
    supports_reasoning_summaries: Literal[False]
    supports_reasoning_summary_parameter: Literal[False]
    support_verbosity: Literal[False]
    default_verbosity: None
    apply_patch_tool_type: None
    truncation_policy: TruncationPolicy
    supports_parallel_tool_calls: Literal[True]
    context_window: int | None
    experimental_supported_tools: list[str]
    input_modalities: list[Literal["text"]]


def describe(model: engine.Engine, place: int, has_effort: bool) -> dict[str, Any]:
    """Describes one model. `place`: the model's position in the list. `has_effort`: whether the
    model's template uses `reasoning_effort`.
    """
    name, context = model.config.name, model.context
    levels = ("low", "medium", "high") if has_effort else ()
    return {
        "slug": name,
        "display_name": name,
        "description": None,
        "default_reasoning_level": "medium" if has_effort else None,
        "supported_reasoning_levels": [{"effort": e, "description": e.title()} for e in levels],
        "shell_type": "default",
        "visibility": "list",
        "supported_in_api": True,
        "priority": place,
        "availability_nux": None,
        "upgrade": None,
        "base_instructions": INSTRUCTIONS,
        "supports_reasoning_summaries": False,
        "supports_reasoning_summary_parameter": False,
        "support_verbosity": False,
        "default_verbosity": None,
        "apply_patch_tool_type": None,
        "truncation_policy": {"mode": "tokens", "limit": _limit(context)},
        "supports_parallel_tool_calls": True,
        "context_window": context or None,
        "experimental_supported_tools": [],
        "input_modalities": ["text"],
    }


def _limit(context: int) -> int:
    """The maximum number of tokens in a tool's output, which must leave room for the
    conversation.
    """
    return min(OUTPUT_TOKENS, context // 4) if context else OUTPUT_TOKENS
