"""Tools in the text of a conversation, for a model whose chat template has none, or whose call
format is unknown. Pure.
"""

import json
from collections.abc import Sequence
from typing import Any

from switchyard.app.parts.call_formats import GENERIC

_OFFER = """\
# Tools

You may call one or more of the following functions. Each line is one, as JSON:
{tools}

To call a function, write an object with its name and its arguments between tags:
{call}"""

Message = dict[str, Any]


def without_tools(messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> list[Message]:
    """The same conversation in texts of system, user and assistant, without tool messages."""
    plain: list[Message] = []
    for i, message in enumerate(messages):
        if message["role"] == "tool":
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
            if i and messages[i - 1]["role"] == "tool":  # many templates want roles to alternate
                plain[-1]["content"] += f"\n{text}"
            else:
                plain.append({"role": "user", "content": text})
        else:
            plain.append(_with_calls_as_text(message))
    return _with_offer(plain, tools) if tools else plain


def _with_calls_as_text(message: Message) -> Message:
    calls = [_call(call["function"]) for call in message.get("tool_calls", ())]
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": "\n".join(filter(None, [message["content"], *calls]))}


def _call(function: dict[str, Any]) -> str:
    before = GENERIC.before.replace("NAME", function["name"])
    return before + arguments_text(function["arguments"]) + GENERIC.behind


def arguments_text(arguments: Any) -> str:
    """The JSON text of a call's arguments. Arguments that were cut off are text already."""
    if isinstance(arguments, str):
        return arguments
    return json.dumps(arguments, ensure_ascii=False)


def _with_offer(messages: list[Message], tools: Sequence[dict[str, Any]]) -> list[Message]:
    lines = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    example = GENERIC.before.replace('"NAME"', "<name>") + "<arguments>" + GENERIC.behind
    offer = _OFFER.format(tools=lines, call=example)
    if messages[0]["role"] != "system":
        return [{"role": "system", "content": offer}, *messages]
    first = {**messages[0], "content": f"{messages[0]['content']}\n\n{offer}"}
    return [first, *messages[1:]]
