"""Writes tools, calls and results into the text of a conversation, for chat templates that do not
support these. Pure.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

from switchyard.app.parts.call_formats import CallFormat

_OFFER = """\
# Tools

You may call one or more of the following functions. Each line is one, as JSON:
TOOLS

To call a function, write its name and its arguments, an object, in this form:
"""

Message = dict[str, Any]
Escape = Callable[[str], str]


class Escaped(str):
    """Text in which everything from the user is escaped, so any unescaped tag is a real one."""

    __slots__ = ()


def with_calls_as_text(
    messages: Sequence[Message], format: CallFormat, escape: Escape
) -> list[Message]:
    """The same conversation, with each call written into the assistant's text in the model's call
    format.
    """
    return [_with_calls_as_text(message, format, escape) for message in messages]


def with_results_as_text(messages: Sequence[Message], escape: Escape) -> list[Message]:
    """The same conversation, with the results of calls written as user messages."""
    plain: list[Message] = []
    for i, message in enumerate(messages):
        if message["role"] == "tool":
            text = f"<tool_response>\n{escape(message['content'])}\n</tool_response>"
            if i and messages[i - 1]["role"] == "tool":  # many templates require alternating roles
                text = f"{plain.pop()['content']}\n{text}"
            plain.append({"role": "user", "content": Escaped(text)})
        else:
            plain.append(message)
    return plain


def with_offer(
    messages: Sequence[Message],
    tools: Sequence[dict[str, Any]],
    format: CallFormat,
    escape: Escape,
) -> list[Message]:
    """The same conversation, with a description of the tools in the system message."""
    if not tools:
        return list(messages)
    lines = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    call = format.call("NAME", "<arguments>").replace('"NAME"', "<name>").replace("NAME", "<name>")
    offer = _OFFER.replace("TOOLS", escape(lines)) + format.opening + call + format.closing
    if messages[0]["role"] != "system":
        return [{"role": "system", "content": Escaped(offer)}, *messages]
    text = Escaped(f"{escape(messages[0]['content'])}\n\n{offer}")
    return [{**messages[0], "content": text}, *messages[1:]]


def arguments_text(arguments: Any) -> str:
    """A call's arguments as JSON text. Arguments that were cut off are already text, and are
    returned unchanged.
    """
    if isinstance(arguments, str):
        return arguments
    return json.dumps(arguments, ensure_ascii=False)


def _with_calls_as_text(message: Message, format: CallFormat, escape: Escape) -> Message:
    calls = [call["function"] for call in message.get("tool_calls", ())]
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    content = message["content"] or ""
    if not calls:
        return {**rest, "content": content}
    texts = [
        format.call(escape(call["name"]), escape(arguments_text(call["arguments"])))
        for call in calls
    ]
    text = format.opening + format.separator.join(texts) + format.closing
    return {**rest, "content": Escaped("\n".join(filter(None, [escape(content), text])))}
