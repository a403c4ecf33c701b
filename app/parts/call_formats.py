"""The syntax of tool calls in models' output: named formats, and formats made from given texts.
Patterns are for the `regex` module, whose partial matches show whether more text could complete a
match. A pattern must therefore match no text that is the beginning of a longer match.
"""

import functools
import re
import secrets
import string
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import regex

from switchyard.engine import Span

Schema = Mapping[str, Any]

# Patterns for JSON: a string, an object, and a call's members other than name and arguments.
_STRING = r'"(?:[^"\\]++|\\.)*+"'
_OBJECT = rf'(?P<object>\{{(?:[^{{}}"]++|{_STRING}|(?&object))*+\}})'
_OTHER = rf'"(?:type|id)"\s*+:\s*+{_STRING}\s*+'
_REST = rf"(?:\s*+,\s*+{_OTHER})*+\s*+\}}"
_SPACE = r"(?<!\s)\s*+"  # white space before a call, which isn't part of the answer's text


_NAME = r'"name"\s*+:\s*+"(?P<name>[^"\\]++)"\s*+'
_KEY = r'"(?:arguments|parameters)"\s*+:\s*+'  # models confuse these two keys

# A JSON object with a name and arguments. The pattern matches up to the arguments' first brace. It
# matches the whole object if the arguments come before the name, are inside a string, or are
# missing.
_CALL = (
    rf"\{{\s*+(?:{_OTHER},\s*+)*+(?:"
    rf"{_NAME}(?:,\s*+{_OTHER})*+(?:,\s*+{_KEY}(?:(?P<begin>\{{)|(?P<string>{_STRING}){_REST})"
    rf"|(?P<nothing>\}}))"
    rf"|{_KEY}{_OBJECT}\s*+,\s*+(?:{_OTHER},\s*+)*+{_NAME}{_REST})"
)

TAG = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]+\]")  # tags that may be single tokens
_WORD = re.compile(rf"{TAG.pattern}|[^\s<\[]+|[<\[]")


def _long_identifier() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


def _short_identifier() -> str:
    """Nine letters or digits, because Mistral's templates refuse any other identifier."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))


def _last_tag(text: str) -> str:
    return next(reversed(TAG.findall(text)), "")


@dataclass(frozen=True, slots=True)
class CallFormat:
    """The syntax of tool calls in one family of models.

    A pattern has the group `name` and one of four groups for the arguments. `begin` is the first
    brace of arguments that follow the match; `object` and `string` hold the arguments; `nothing`
    means that there are no arguments. In the texts for a grammar, `NAME` stands for the name of the
    tool.
    """

    # For a grammar: the text that begins the first call and occurs nowhere else, or ""; then the
    # text before all calls, before and after a call's arguments, between calls, and after all
    # calls.
    trigger: str
    opening: str
    before: str
    behind: str
    separator: str
    closing: str
    # For the parser: patterns of calls anywhere, at the beginning of an answer, and right after
    # another call.
    anywhere: str
    first: str | None = None
    next: str | None = None
    # Patterns of the text after arguments that `begin` found, and after a call that matched as a
    # whole.
    rest: str = ""
    end: str = ""
    identifier: Callable[[], str] = _long_identifier
    more_tags: tuple[str, ...] = ()  # tags that models may write in addition to the texts above

    @property
    def texts(self) -> tuple[str, str, str, str, str]:
        return self.opening, self.before, self.behind, self.separator, self.closing

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags in the format's texts. In some models these are special tokens."""
        found = [tag for text in self.texts for tag in TAG.findall(text) if "NAME" not in tag]
        return tuple(dict.fromkeys([*found, *self.more_tags]))

    @property
    def spans(self) -> tuple[Span, ...]:
        """The spans of an answer that can contain calls. If a format's calls have no closing tag,
        the span reaches to the end of the answer.
        """
        if not self.trigger:  # the first key, in Llama's form
            keys = re.match(r'\{\s*("[^"]*")', self.before)
            starts = [f"{brace}{keys[1]}" for brace in ("{", "{ ")] if keys else []
            return (*(Span(s, is_first=True) for s in starts), *map(Span, self.more_tags))
        spans = [Span(self.trigger, _last_tag(self.closing or self.behind))]
        lead = TAG.match(self.before)
        if self.opening and lead and lead[0] != self.trigger:  # a model may leave out the opening
            spans.append(Span(lead[0], _last_tag(self.behind)))
        return tuple(spans)

    @property
    def with_short_identifiers(self) -> "CallFormat":
        return replace(self, identifier=_short_identifier)

    def call(self, name: str, arguments: str) -> str:
        """The text of one call, without the texts around all calls."""
        return self.before.replace("NAME", name) + arguments + self.behind

    def for_grammar(self, name: str, schema: Schema) -> tuple[str, Schema, str]:
        """The parts of one call: the text before its arguments, their schema, and the text after
        them.
        """
        return self.before.replace("NAME", name), schema, self.behind


def of_json(
    lead: str,
    member: str,
    behind: str = "",
    separator: str = "",
    opening: str = "",
    closing: str = "",
) -> CallFormat:
    """A format whose call is a JSON object, between the texts `lead` and `behind`.

    `member`: the object up to the arguments, as in `{"name": "NAME", "arguments": `.
    """
    found = _framed(lead, _CALL, separator, opening, closing)
    # Small models miscount braces, but write the closing tag correctly.
    end = rf"[\s}}]*+{_spaced(behind)}" if behind else ""
    rest = rf"(?:\s*+,\s*+{_OTHER})*+{end}" if behind else _REST
    return replace(found, before=lead + member, behind=f"}}{behind}", rest=rest, end=end)


def of_name(
    lead: str,
    between: str,
    behind: str = "",
    separator: str = "",
    opening: str = "",
    closing: str = "",
) -> CallFormat:
    """A format whose call is a name, the text `between` and a JSON object."""
    call = r"(?P<name>[A-Za-z0-9_.\-]++)\s*+" + _after(between) + r"(?P<begin>\{)"
    found = _framed(lead, call, separator, opening, closing)
    rest = rf"\s*+{_spaced(behind)}" if behind else ""
    return replace(found, before=f"{lead}NAME{between}", behind=behind, rest=rest)


def _framed(lead: str, call: str, separator: str, opening: str, closing: str) -> CallFormat:
    """Makes a format, with the parts that are the same for all kinds of calls."""
    begin = _after(opening) + _after(lead)
    if opening and lead:  # a model may leave out the opening
        begin = rf"(?:{_after(opening)})?+{_after(lead)}"
    following = rf"{_after(separator)}{_after(lead)}{call}"
    if closing:
        following = rf"(?:{_spaced(closing)}|{following})"
    start = opening or lead
    tag = TAG.match(start)
    trigger = tag[0] if tag else start.removesuffix("[")
    return CallFormat(
        trigger=trigger,
        opening=opening,
        before="",
        behind="",
        separator=separator,
        closing=closing,
        # A call without a mark could be text.
        anywhere=_SPACE + begin + call if trigger else r"(?!)",
        # Some models leave out the tag before a list of calls.
        first=rf"\s*+\[\s*+{call}" if opening.endswith("[") and not lead else None,
        next=rf"\s*+{following}" if opening else None,
    )


def _spaced(text: str) -> str:
    """A pattern for `text` with any white space between its words."""
    return r"\s*+".join(map(re.escape, _WORD.findall(text)))


def _after(text: str) -> str:
    pattern = _spaced(text)
    return rf"{pattern}\s*+" if pattern else ""


_LLAMA3 = CallFormat(
    trigger="",
    opening="",
    before='{"name": "NAME", "parameters": ',
    behind="}",
    separator="; ",
    closing="",
    anywhere=_SPACE + r"<\|python_tag\|>\s*+" + _CALL,
    first=r"\s*+" + _CALL,
    next=r"\s*+;?+\s*+" + _CALL,
    rest=_REST,
    more_tags=("<|python_tag|>",),
)

# Channels of gpt-oss. An answer begins with the name of its channel, which isn't part of its text.
_CHANNEL = r"(?:<\|channel\|>(?:commentary|analysis)\s*+)?+"
_TO_FUNCTION = (
    rf"(?:<\|end\|>)?+(?:<\|start\|>assistant\s*+)?+{_CHANNEL}to=functions\."
    rf"(?P<name>[A-Za-z0-9_.\-]++)\s*+{_CHANNEL}(?:<\|constrain\|>)?+(?:json\s*+)?+"
    r"<\|message\|>\s*+(?P<begin>\{)"
)
_GPT_OSS = CallFormat(
    trigger="<|channel|>commentary to=functions.",
    opening="",
    before="<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>",
    behind="<|call|>",
    separator="<|start|>assistant",
    closing="",
    anywhere=_SPACE + _TO_FUNCTION,
    first=r"\s*+(?:(?:<\|start\|>assistant)?+<\|channel\|>(?:final|commentary)<\|message\|>"
    rf"|{_TO_FUNCTION})",
    rest=r"\s*+<\|call\|>",
    more_tags=("<|start|>", "<|end|>"),
)

FORMATS = {
    # Functionary 3.1, and Llama 3.1's custom tools
    "function-tag": of_name("<function=", ">", "</function>"),
    # Nous Hermes and Qwen
    "hermes": of_json(
        "<tool_call>\n", '{"name": "NAME", "arguments": ', "\n</tool_call>", separator="\n"
    ),
    # Mistral since November 2024
    "mistral-args": replace(
        of_name("[TOOL_CALLS]", "[ARGS]"),
        anywhere=_SPACE + r"\[TOOL_CALLS\]\s*+(?P<name>[^\s\[\]{}\"]++)\s*+"
        r"(?:\[CALL_ID\][^\[\]]*+)?+(?:\[ARGS\]\s*+)?+(?P<begin>\{)",
        more_tags=("[CALL_ID]",),
    ).with_short_identifiers,
    # Mistral before November 2024
    "mistral": of_json(
        "", '{"name": "NAME", "arguments": ', "", ", ", "[TOOL_CALLS][", "]"
    ).with_short_identifiers,
    # Llama 3.1 to 3.3
    "llama3": _LLAMA3,
    "gpt-oss": _GPT_OSS,
}
GENERIC = FORMATS["hermes"]  # for models whose template has no format

# If a chat template writes no calls itself, its format is the first one whose marks all occur in
# it.
_MARKS = {
    "function-tag": ("<function=",),
    "hermes": ("<tool_call>",),
    "mistral-args": ("[TOOL_CALLS]", "[ARGS]"),
    "mistral": ("[TOOL_CALLS]",),
    "llama3": ('"parameters":', "name"),
    "gpt-oss": ("<|channel|>", "to=functions."),
}
# Marks of unsupported formats, whose templates also have a supported format's marks: Qwen3-Coder
# and GLM 4.5 put a tag around each argument.
_OTHERS = ("<parameter=", "<arg_key>")


@functools.cache
def compiled(pattern: str) -> "regex.Pattern[str]":
    return regex.compile(pattern, regex.DOTALL)


def of_bare_json(member: str, separator: str) -> CallFormat:
    """A format whose calls are only JSON objects, as in Llama's format."""
    return replace(_LLAMA3, before=member, separator=separator)


def recognise(template: str) -> CallFormat | None:
    """The first format whose marks the chat template contains; None if there is no such format."""
    if any(mark in template for mark in _OTHERS):
        return None
    for name, marks in _MARKS.items():
        if all(mark in template for mark in marks):
            return FORMATS[name]
    return None
