"""Arranges the roles, calls and identifiers of a conversation so that a chat template accepts them.
Pure.
"""

from collections.abc import Iterable, Sequence

from switchyard.app.chat.adapt.generic import Message
from switchyard.app.chat.adapt.traits import Traits


def arranged(messages: Sequence[Message], traits: Traits) -> list[Message]:
    """All messages, in an order and format that the template accepts."""
    found = list(messages)
    if not traits.takes_two_calls:
        found = list(_one_by_one(found))
    if not traits.takes_system:
        found = _without_system(found)
    if traits.alternates:
        found = _alternating(found)
    return [traits.in_form(message) for message in found]


def _one_by_one(messages: Sequence[Message]) -> Iterable[Message]:
    """Splits each message with several calls into messages with one call, each followed by its
    result.
    """
    i = 0
    while i < len(messages):
        message = messages[i]
        i += 1
        calls = message.get("tool_calls", ())
        if len(calls) < 2:
            yield message
            continue
        results: list[Message] = []
        while i < len(messages) and messages[i]["role"] == "tool":
            results.append(messages[i])
            i += 1
        bare = {"role": message["role"], "content": None}
        for call in calls:
            yield {**(message if call is calls[0] else bare), "tool_calls": [call]}
            found = [result for result in results if result.get("tool_call_id") == call["id"]]
            yield from found
            results = [result for result in results if result not in found]
        yield from results  # results that belong to no call


def _without_system(messages: Sequence[Message]) -> list[Message]:
    """Moves the text of system messages to the beginning of the next user message."""
    found: list[Message] = []
    texts: list[str] = []
    for message in messages:
        if message["role"] == "system":
            texts.append(message["content"])
        elif message["role"] == "user" and texts:
            found.append({**message, "content": "\n\n".join([*texts, message["content"]])})
            texts = []
        else:
            found.append(message)
    if texts:
        found.append({"role": "user", "content": "\n\n".join(texts)})
    return found


def _alternating(messages: Sequence[Message]) -> list[Message]:
    """Makes user and assistant messages alternate, beginning with the user. Messages with calls or
    results are left as they are. Consecutive messages with the same role are joined; if they can't
    be joined, an empty message is inserted between them.
    """
    found: list[Message] = []
    wanted = "user"
    for message in messages:
        role = message["role"]
        if role not in ("user", "assistant") or message.get("tool_calls"):
            found.append(message)
            continue
        if role != wanted:
            if found and found[-1]["role"] == role and not found[-1].get("tool_calls"):
                found[-1] = _joined(found[-1], message)
                continue
            found.append({"role": wanted, "content": ""})
        found.append(message)
        wanted = "user" if role == "assistant" else "assistant"
    return found


def _joined(first: Message, second: Message) -> Message:
    joined = {**first, **second}
    for name in ("content", "reasoning_content"):
        if texts := [message[name] for message in (first, second) if message.get(name)]:
            joined[name] = "\n\n".join(texts)
    return joined
