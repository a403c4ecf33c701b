"""Keeps the tags around thoughts in the assistant's messages if a chat template looks for them."""

import re

from switchyard.app.chat.adapt.generic import Escape, Escaped, Message
from switchyard.app.parts.parser import Tags


def escape_once(escape: Escape) -> Escape:
    """Like `escape`, but leaves text that is already escaped unchanged."""
    return lambda text: text if isinstance(text, Escaped) else escape(text)


def keep_tags(message: Message, tags: Tags, template: str, escape: Escape) -> Message:
    """The assistant's message, with the tags of its thoughts unescaped if the template removes
    thoughts by splitting at these tags. Other tags are treated as plain text, as in any message.
    """
    splits = re.search(rf"split\(\s*['\"]{re.escape(tags.end)}['\"]", template)
    content = message.get("content") or ""
    if splits is None or message.get("reasoning_content") or tags.end not in content:
        return message
    *thoughts, answer = content.split(tags.end)
    kept = [tags.start.join(map(escape, part.split(tags.start))) for part in thoughts]
    return {**message, "content": Escaped(tags.end.join([*kept, escape(answer)]))}


def keep_begun(message: Message, tags: Tags, escape: Escape) -> Message:
    """The message that the answer continues. If the message begins with thoughts, their tags are
    not escaped.
    """
    content = message.get("content") or ""
    space, start, rest = content.partition(tags.start)
    if not start or space.strip() or isinstance(content, Escaped):
        return message
    thoughts, end, answer = rest.partition(tags.end)
    return {**message, "content": Escaped(f"{space}{start}{escape(thoughts)}{end}{escape(answer)}")}
