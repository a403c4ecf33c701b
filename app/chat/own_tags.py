"""Tags of thoughts in the assistant's own messages, which a chat template must still find."""

import re
from collections.abc import Callable
from typing import Any

from switchyard.app.parts.parser import Tags


class Escaped(str):
    """A text that is escaped already."""

    __slots__ = ()


def escape_unless_done(escape: Callable[[str], str]) -> Callable[[str], str]:
    return lambda text: text if isinstance(text, Escaped) else escape(text)


def keep_tags(
    message: dict[str, Any], tags: Tags, template: str, escape: Callable[[str], str]
) -> dict[str, Any]:
    """A message of the assistant whose thoughts the template takes out by splitting at their tags:
    these tags stay as they are, and the template drops them.

    Other tags are plain text, as in any message.
    """
    splits = re.search(rf"split\(\s*['\"]{re.escape(tags.end)}['\"]", template)
    content = message.get("content") or ""
    if splits is None or message.get("reasoning_content") or tags.end not in content:
        return message
    *thoughts, answer = content.split(tags.end)
    kept = [tags.start.join(map(escape, part.split(tags.start))) for part in thoughts]
    return {**message, "content": Escaped(tags.end.join([*kept, escape(answer)]))}


def keep_begun(message: dict[str, Any], tags: Tags, escape: Callable[[str], str]) -> dict[str, Any]:
    """A message that the answer continues, and that begins with thoughts: their tags count."""
    content = message.get("content") or ""
    space, start, rest = content.partition(tags.start)
    if not start or space.strip():
        return message
    thoughts, end, answer = rest.partition(tags.end)
    return {**message, "content": Escaped(f"{space}{start}{escape(thoughts)}{end}{escape(answer)}")}
