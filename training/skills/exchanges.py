"""A question and its answer: what every skill draws."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Exchange:
    """`expected` is what a right answer holds; training and evaluation have no `key` in common but
    the empty one.
    """

    user: str
    assistant: str
    expected: str = ""
    key: str = ""


def exchange(user: str, assistant: str, expected: str = "", key: str | None = None) -> Exchange:
    """The key is the question, if it isn't given."""
    key = user.lower().rstrip("?.! ") if key is None else key
    return Exchange(user, assistant, expected or assistant, key)


def talk(user: str, assistant: str, expected: str = "") -> Exchange:
    """Has too few wordings to keep some back."""
    return exchange(user, assistant, expected, "")
