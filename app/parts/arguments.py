"""The arguments of a call, as they stand in a text: where they are, and where they end. Pure."""

import json
import re


def whole_arguments(groups: dict[str, str | None]) -> str | None:
    """Of a call that was matched with its arguments; "" if they follow, None if they are none."""
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
    """Finds where an object of JSON ends that comes in pieces."""

    _MARKS = re.compile(r'["\\{}]')

    def __init__(self) -> None:
        self._seen = 0  # characters
        self._depth = 0
        self._is_string = False
        self._escaped = -1  # the character behind the last backslash

    def find(self, text: str) -> int | None:
        """Where in `text`, which follows what has been seen; None if it doesn't end in it."""
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
