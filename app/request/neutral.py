"""What a request asks for that asks for nothing: taken, and told. One context for each request."""

from contextvars import ContextVar

MAX_TOLD = 1000  # characters

_ignored: ContextVar[dict[str, None] | None] = ContextVar("ignored", default=None)


def begin() -> None:
    """A request of which nothing has been read."""
    _ignored.set({})


def note(name: str) -> None:
    """Of a field, as its documentation has it: never what a client has made up."""
    names = _ignored.get()
    if names is not None:
        names[name] = None


def told() -> str:
    """The names, with commas between them; of very many, the first."""
    text = ",".join(_ignored.get() or ())
    return text if len(text) <= MAX_TOLD else text[: text.rindex(",", 0, MAX_TOLD - 4)] + ",..."
