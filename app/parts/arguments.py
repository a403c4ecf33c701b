"""Finds the arguments of a tool call in a text, and where the arguments end. Pure."""

import json
import re


def whole_arguments(groups: dict[str, str | None]) -> str | None:
    """The arguments in the match of a call, as JSON text.

    Empty if the arguments begin after the match. None if they aren't a JSON object. `groups`: the
    groups that a `CallFormat` pattern has matched.
    """
    if groups.get("begin"):
        return ""
    if groups.get("nothing"):
        return "{}"
    try:
        text = groups["object"] or json.loads(str(groups["string"]), strict=False)
        return text if isinstance(json.loads(text), dict) else None
    except ValueError:
        return None


class ObjectEnd:
    """Finds the end of a JSON object that arrives in pieces."""

    _MARKS = re.compile(r'["\\{}]')

    def __init__(self) -> None:
        self._seen = 0  # characters seen so far
        self._depth = 0
        self._is_string = False
        self._escaped = -1  # the position of the character after the last backslash

    def find(self, text: str) -> int | None:
        """The position after the object's end in `text`, the next piece. None if the object has not
        ended.
        """
        for match in self._MARKS.finditer(text):
            at = self._seen + match.start()
            if self._is_string:
                if at == self._escaped:
                    continue
                if match[0] == "\\":
                    self._escaped = at + 1
                self._is_string = match[0] != '"'
            elif match[0] == '"':
                self._is_string = True
            elif match[0] != "\\":
                self._depth += 1 if match[0] == "{" else -1
                if self._depth == 0:
                    return match.end()
        self._seen += len(text)
        return None
