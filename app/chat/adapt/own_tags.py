"""Tags of thoughts in the assistant's own messages, which a chat template must still find."""

import re

from switchyard.app.chat.adapt.generic import Escape, Escaped, Message
from switchyard.app.parts.parser import Tags


def escape_once(escape: Escape) -> Escape:
    """As `escape`, but a text that is escaped already stays as it is."""
    return lambda text: text if isinstance(text, Escaped) else escape(text)


def keep_tags(message: Message, tags: Tags, template: str, escape: Escape) -> Message:
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


def keep_begun(message: Message, tags: Tags, escape: Escape) -> Message:
    """A message that the answer continues, and that begins with thoughts: their tags count."""
    content = message.get("content") or ""
    space, start, rest = content.partition(tags.start)
    if not start or space.strip() or isinstance(content, Escaped):
        return message
    thoughts, end, answer = rest.partition(tags.end)
    return {**message, "content": Escaped(f"{space}{start}{escape(thoughts)}{end}{escape(answer)}")}
