"""How models write calls of tools. A format is a row of FORMATS, and nothing anywhere else.

Patterns are of the `regex` module, which tells of a text that ends too early whether it may become
a match: so they must match no text that is the beginning of a longer match.
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

# An object of JSON, and of members that say nothing of a call.
_STRING = r'"(?:[^"\\]++|\\.)*+"'
_OBJECT = rf'(?P<object>\{{(?:[^{{}}"]++|{_STRING}|(?&object))*+\}})'
_OTHER = rf'"(?:type|id)"\s*+:\s*+{_STRING}\s*+'
_REST = rf"(?:\s*+,\s*+{_OTHER})*+\s*+\}}"
_SPACE = r"(?<!\s)\s*+"  # before a call: not text of the answer


def _call(key: str) -> str:
    """An object with a name, and with the arguments as the member `key`: up to their first brace;
    or, where they come first, are in a string or missing, all of it.
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
    """Mistral's templates refuse any others."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))


@dataclass(frozen=True, slots=True)
class CallFormat:
    """In patterns: the group `name`, and one of `begin`, the first brace of arguments that follow,
    `object` or `string`, which hold them, and `nothing`, if there are none. `NAME` stands for the
    name in what a grammar writes.
    """

    name: str
    marks: tuple[str, ...]  # all of which a chat template has that asks for this format
    tags: tuple[str, ...]  # of which some models make special tokens
    # As a grammar writes calls: what the first begins with, which is nowhere else, if there is
    # such a thing; what is around all of them, around the arguments of one, between.
    trigger: str
    opening: str
    before: str
    behind: str
    separator: str
    closing: str
    # As a parser finds calls: anywhere, at the beginning of an answer, right behind another call.
    anywhere: str
    first: str | None = None
    next: str | None = None
    # What follows arguments that began with `begin`, and what a call that was matched whole.
    rest: str = ""
    end: str = ""
    identifier: Callable[[], str] = _long_identifier

    # As a grammar writes a call: a text, the schema of the JSON behind it, a text behind that.

    def as_text(self, name: str, schema: Schema) -> tuple[str, Schema, str]:
        return self.before.replace("NAME", name), schema, self.behind

    def as_json(self, name: str, schema: Schema) -> tuple[str, Schema, str]:
        """Of a format whose calls are JSON: all of it by one schema."""
        call = json.loads(f"{self.before.replace('NAME', name)}null{self.behind}")
        within = {"$id": "arguments", **schema}  # its references are to what is in it
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
        # Small models count braces wrong, but set the tag.
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

# Marks of formats that aren't here, whose templates have marks of some that are: Qwen3-Coder's,
# GLM 4.5's, with a tag around each argument.
_OTHERS = ("<parameter=", "<arg_key>")

FORMATS = {format.name: format for format in _FORMATS}
GENERIC = FORMATS["hermes"]  # for models that know none


@functools.cache
def compiled(pattern: str) -> "regex.Pattern[str]":
    return regex.compile(pattern, regex.DOTALL)


def recognise(template: str) -> CallFormat | None:
    """The format that a chat template asks its model for; the first whose marks it has."""
    if any(mark in template for mark in _OTHERS):
        return None
    return next((f for f in _FORMATS if all(mark in template for mark in f.marks)), None)
