"""Renders small conversations to find out what a chat template accepts, and how it writes calls."""

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from switchyard.app.chat.adapt.generic import Message
from switchyard.app.chat.adapt.traits import Traits
from switchyard.app.chat.sandbox import TooMuch
from switchyard.app.parts.call_formats import CallFormat, recognise
from switchyard.app.parts.shown_format import KnownCall, read_format

Render = Callable[..., str]  # renders messages

_USER = {"role": "user", "content": "Where is it?"}
_NEXT = {"role": "user", "content": "And now?"}
_SYSTEM = {"role": "system", "content": "Be brief."}
_ANSWER = {"role": "assistant", "content": "It is there."}
_RESULT = "Found it."
_LONG, _SHORT = "call_0123456789abcdef01234567", "call0000"
_ARGUMENTS = ({"needle": "in a stack"}, {"needle": "in the hay"})
_NAMES = ("find_it", "take_it")


def probe(render: Render, source: str) -> tuple[Traits, str | None]:
    """The traits of a template, and the error message if the template can't render any
    conversation.

    `render` renders messages, and may raise any exception. `source`: the template's text, which may
    show the format of calls even if the template renders no calls.
    """
    fault = _fault(render, [_USER])
    if isinstance(fault, TooMuch):  # rendering further conversations would take just as long
        return Traits(format=recognise(source)), str(fault)
    traits = _with_calls(render, Traits())
    if fault is not None and (traits.shows_calls or not _fault(render, [_SYSTEM, _USER])):
        fault = None
    is_heard = _shows(render, [_SYSTEM, _USER], [_SYSTEM["content"]])
    traits = replace(
        traits,
        takes_system=is_heard or not _shows(render, [_USER], [_USER["content"]]),
        alternates=bool(_fault(render, [_USER, _NEXT]))
        and not _fault(render, [_USER, _ANSWER, _NEXT]),
    )
    format = _format(render, traits) if traits.shows_calls else None
    if format is not None and not _is_faithful(render, traits, format):
        traits = replace(traits, shows_calls=False, takes_two_calls=True)
    format = format or recognise(source)
    if format is not None and traits.short_identifiers:
        format = format.with_short_identifiers
    call, result = _turn(traits, 1)
    shown = _shows(render, [_USER, call if traits.shows_calls else _ANSWER, result], [_RESULT])
    traits = replace(traits, format=format, shows_results=shown)
    return traits, None if fault is None else str(fault)


def _with_calls(render: Render, traits: Traits) -> Traits:
    """The traits, completed with a way of passing calls that makes the template render them.
    Prefers a way that makes the template render the arguments as JSON.
    """
    outputs: dict[Traits, str] = {}
    for form in itertools.product((False, True), (None, ""), (False, True)):
        short, no_content, are_text = form
        tried = replace(
            traits,
            short_identifiers=short,
            no_content=no_content,
            arguments_are_text=are_text,
            takes_text=True,
        )
        text = _rendered(render, [_USER, *_turn(tried, 1)])
        if text is None:
            text = _rendered(render, [_USER, _calling(tried, 1)])
        if text is not None and "None" not in _behind(text, _USER):
            outputs[tried] = text
    for pattern in ('"needle": ?"in a stack"', "in a stack"):
        for form_, text in outputs.items():
            if re.search(pattern, text):
                return _completed(render, form_)
    return traits


def _completed(render: Render, traits: Traits) -> Traits:
    """The complete traits of a template that renders one call if the call is passed as `traits`
    describes.
    """
    cut_off = _turn(traits, 1)
    cut_off[0]["tool_calls"][0]["function"]["arguments"] = "in a stack"
    two = [str(arguments["needle"]) for arguments in _ARGUMENTS]
    return replace(
        traits,
        shows_calls=True,
        takes_text=_shows(render, [_USER, *cut_off], ["in a stack"]),
        takes_two_calls=_shows(render, [_USER, *_turn(traits, 2)], two),
    )


def _format(render: Render, traits: Traits) -> CallFormat | None:
    """The format in which the template writes calls. None if the format can't be determined."""
    plain = _rendered(render, [_USER, _ANSWER])
    one = _rendered(render, [_USER, _calling(traits, 1)])
    if plain is None or one is None or _ANSWER["content"] not in plain:
        return None
    head, _, tail = _behind(plain, _USER).partition(_ANSWER["content"])
    two = _rendered(render, [_USER, _calling(traits, 2)]) if traits.takes_two_calls else None
    bodies = [text and _body(_behind(text, _USER), head, tail) for text in (one, two)]
    if bodies[0] is None or (two is not None and bodies[1] is None):
        return None
    calls = [
        KnownCall(name, arguments, _identifier(traits, i))
        for i, (name, arguments) in enumerate(zip(_NAMES, _ARGUMENTS, strict=True))
    ]
    return read_format(bodies[0], bodies[1], calls)


def _body(turn: str, head: str, tail: str) -> str | None:
    """The text between the beginning and the end of the assistant's turn. None if the turn doesn't
    begin with `head` and end with `tail`.
    """
    head = head.rstrip()
    if not turn.startswith(head):
        return None
    body = turn.removeprefix(head).lstrip()
    if tail.strip() and tail.strip() in body:
        body = body.rpartition(tail.strip())[0]
    return body.rstrip()


def _is_faithful(render: Render, traits: Traits, format: CallFormat) -> bool:
    """Whether the template also shows a call that accompanies text, and calls in a second turn."""
    call, result = _turn(traits, 1)
    beside = {**call, "content": _ANSWER["content"]}
    if not _shows(render, [_USER, beside, result], ["in a stack"]):
        return False
    text = _rendered(render, [_USER, call, result, call, result])
    return text is not None and _behind(text, _USER).count(format.opening or "in a stack") >= 2


def _calling(traits: Traits, num_calls: int) -> Message:
    calls = [
        {
            "id": _identifier(traits, i),
            "type": "function",
            "function": {"name": _NAMES[i], "arguments": _ARGUMENTS[i]},
        }
        for i in range(num_calls)
    ]
    return traits.in_form({"role": "assistant", "content": None, "tool_calls": calls})


def _turn(traits: Traits, num_calls: int) -> list[Message]:
    """A message with `num_calls` calls, and the messages with their results."""
    results = [
        {"role": "tool", "tool_call_id": _identifier(traits, i), "content": _RESULT}
        for i in range(num_calls)
    ]
    return [_calling(traits, num_calls), *results]


def _identifier(traits: Traits, i: int) -> str:
    return f"{_SHORT if traits.short_identifiers else _LONG}{i}"


def _rendered(render: Render, messages: Sequence[Message]) -> str | None:
    try:
        return render(messages)
    except Exception:
        return None


def _fault(render: Render, messages: Sequence[Message]) -> Exception | None:
    try:
        render(messages)
    except Exception as error:  # a template may raise anything
        return error
    return None


def _shows(render: Render, messages: Sequence[Message], texts: Iterable[str]) -> bool:
    rendered = _rendered(render, messages)
    return rendered is not None and all(text in rendered for text in texts)


def _behind(text: str, message: Message) -> str:
    return text.rpartition(message["content"])[2]
