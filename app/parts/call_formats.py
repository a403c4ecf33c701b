"""The syntax of tool calls in models' output. A format is one row of FORMATS, and nothing else.

Patterns are for the module `regex`, for its partial matches: it tells whether more text could
complete a match. A pattern must therefore match no text that is the beginning of a longer match.
"""

import functools
import json
import secrets
import string
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import regex

Schema = Mapping[str, Any]

# JSON: a string, an object, and members of a call that carry neither name nor arguments.
_STRING = r'"(?:[^"\\]++|\\.)*+"'
_OBJECT = rf'(?P<object>\{{(?:[^{{}}"]++|{_STRING}|(?&object))*+\}})'
_OTHER = rf'"(?:type|id)"\s*+:\s*+{_STRING}\s*+'
_REST = rf"(?:\s*+,\s*+{_OTHER})*+\s*+\}}"
_SPACE = r"(?<!\s)\s*+"  # white space before a call, which is no text of the answer


def _call(key: str) -> str:
    """A pattern for a JSON object with a name, and with arguments as the member `key`.

    It matches up to the arguments' first brace. It matches the whole object if the arguments come
    before the name, are inside a string, or are missing.
    """
    name = r'"name"\s*+:\s*+"(?P<name>[^"\\]++)"\s*+'
    key = rf'"{key}"\s*+:\s*+'
    return (
        rf"\{{\s*+(?:{_OTHER},\s*+)*+(?:"
        rf"{name}(?:,\s*+{_OTHER})*+(?:,\s*+{key}(?:(?P<begin>\{{)|(?P<string>{_STRING}){_REST})"
        rf"|(?P<nothing>\}}))"
        rf"|{key}{_OBJECT}\s*+,\s*+(?:{_OTHER},\s*+)*+{name}{_REST})"
    )


def _long_identifier() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


def _short_identifier() -> str:
    """Nine letters or digits: Mistral's templates refuse any other identifier."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))


@dataclass(frozen=True, slots=True)
class CallFormat:
    """The syntax of tool calls in one family of models.

    A pattern has the group `name` and one of four groups for the arguments. `begin` is their first
    brace, if they follow; `object` and `string` hold them; `nothing` says that there are none.
    In the texts for a grammar, `NAME` stands for the name of the tool.
    """

    name: str
    marks: tuple[str, ...]  # a chat template with all of these asks for this format
    tags: tuple[str, ...]  # some models have special tokens for them
    # For a grammar: the text that begins the first call and stands nowhere else, or ""; then the
    # text before all calls, before and behind the arguments of one, between calls, behind all.
    trigger: str
    opening: str
    before: str
    behind: str
    separator: str
    closing: str
    # For the parser: calls anywhere, at the beginning of an answer, right behind another call.
    anywhere: str
    first: str | None = None
    next: str | None = None
    # Patterns of the text behind arguments found by `begin`, and behind a call matched whole.
    rest: str = ""
    end: str = ""
    identifier: Callable[[], str] = _long_identifier

    # A call for a grammar: text, the schema of the JSON behind it, the text behind the JSON.

    def as_text(self, name: str, schema: Schema) -> tuple[str, Schema, str]:
        return self.before.replace("NAME", name), schema, self.behind

    def as_json(self, name: str, schema: Schema) -> tuple[str, Schema, str]:
        """The whole call as one schema, for a format whose calls are JSON."""
        call = json.loads(f"{self.before.replace('NAME', name)}null{self.behind}")
        within = {"$id": "arguments", **schema}  # `$ref`s inside resolve within the arguments
        properties = {k: within if value is None else {"const": value} for k, value in call.items()}
        whole = {"type": "object", "properties": properties, "required": list(call)}
        return "", {**whole, "additionalProperties": False}, ""


_FORMATS = (
    CallFormat(  # Functionary 3.1, Llama 3.1's custom tools
        name="function-tag",
        marks=("<function=",),
        tags=(),
        trigger="<function=",
        opening="",
        before="<function=NAME>",
        behind="</function>",
        separator="",
        closing="",
        anywhere=_SPACE + r"<function=(?P<name>[^\s<>={}]++)>\s*+(?P<begin>\{)",
        rest=r"\s*+</function>",
    ),
    CallFormat(  # Nous Hermes, Qwen
        name="hermes",
        marks=("<tool_call>",),
        tags=("<tool_call>", "</tool_call>"),
        trigger="<tool_call>",
        opening="",
        before='<tool_call>\n{"name": "NAME", "arguments": ',
        behind="}\n</tool_call>",
        separator="\n",
        closing="",
        anywhere=_SPACE + r"<tool_call>\s*+" + _call("arguments"),
        # Small models miscount braces, but write the closing tag.
        rest=rf"(?:\s*+,\s*+{_OTHER})*+[\s}}]*+</tool_call>",
        end=r"[\s}]*+</tool_call>",
    ),
    CallFormat(  # Mistral since November 2024
        name="mistral-args",
        marks=("[TOOL_CALLS]", "[ARGS]"),
        tags=("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
        trigger="[TOOL_CALLS]",
        opening="",
        before="[TOOL_CALLS]NAME[ARGS]",
        behind="",
        separator="",
        closing="",
        anywhere=_SPACE + r"\[TOOL_CALLS\]\s*+(?P<name>[^\s\[\]{}\"]++)\s*+"
        r"(?:\[CALL_ID\][^\[\]]*+)?+(?:\[ARGS\]\s*+)?+(?P<begin>\{)",
        identifier=_short_identifier,
    ),
    CallFormat(  # Mistral before
        name="mistral",
        marks=("[TOOL_CALLS]",),
        tags=("[TOOL_CALLS]",),
        trigger="[TOOL_CALLS]",
        opening="[TOOL_CALLS][",
        before='{"name": "NAME", "arguments": ',
        behind="}",
        separator=", ",
        closing="]",
        anywhere=_SPACE + r"\[TOOL_CALLS\]\s*+\[\s*+" + _call("arguments"),
        next=rf"\s*+(?:\]|,\s*+{_call('arguments')})",
        rest=_REST,
        identifier=_short_identifier,
    ),
    CallFormat(  # Llama 3.1 to 3.3
        name="llama3",
        marks=('"parameters":', "name"),
        tags=("<|python_tag|>",),
        trigger="",
        opening="",
        before='{"name": "NAME", "parameters": ',
        behind="}",
        separator="; ",
        closing="",
        anywhere=_SPACE + r"<\|python_tag\|>\s*+" + _call("parameters"),
        first=r"\s*+" + _call("parameters"),
        next=r"\s*+;?+\s*+" + _call("parameters"),
        rest=_REST,
    ),
)

# Marks of unsupported formats, whose templates also have a supported format's marks: Qwen3-Coder
# and GLM 4.5 put a tag around each argument.
_OTHERS = ("<parameter=", "<arg_key>")

FORMATS = {format.name: format for format in _FORMATS}
GENERIC = FORMATS["hermes"]  # for models whose template has no format


@functools.cache
def compiled(pattern: str) -> "regex.Pattern[str]":
    return regex.compile(pattern, regex.DOTALL)


def recognise(template: str) -> CallFormat | None:
    """The first format whose marks a chat template has; None if it has no known format."""
    if any(mark in template for mark in _OTHERS):
        return None
    return next((f for f in _FORMATS if all(mark in template for mark in f.marks)), None)
