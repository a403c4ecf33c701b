"""Stored responses: finds the conversation that a request continues, and stores the answer. Runs on
request threads and the sender's thread.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import flask
from pydantic import TypeAdapter

from switchyard import engine
from switchyard.app.chat.turns.store import StoredTurns
from switchyard.app.chat.turns.turn import Turn
from switchyard.app.delivery import submit
from switchyard.app.delivery.render import Body, Render, Wrapped
from switchyard.app.errors import NotStored
from switchyard.app.exceptions import BadRequest
from switchyard.app.formats.responses.items import AnyItem, to_chat
from switchyard.app.formats.responses.parse import ResponseRequest
from switchyard.app.http.body import dumps
from switchyard.app.http.identity import owner_of, share_of
from switchyard.app.request import neutral
from switchyard.app.services import Services

PARAMETER = "previous_response_id"

_ITEMS: TypeAdapter[list[AnyItem]] = TypeAdapter(list[AnyItem])


class StoredConversation:
    """The conversation of one request: the stored messages, and those that the request adds."""

    def __init__(self, request: ResponseRequest, here: Services) -> None:
        """Raises NotStored, BadRequest, and the exceptions of `submit.enter`."""
        self._store = here.stored
        self._previous = _previous(request, here)
        self._added = request.messages()
        self._is_wanted = request.store

    @property
    def is_stored(self) -> bool:
        return self._is_wanted and self._store.is_on

    @property
    def messages(self) -> list[dict[str, Any]]:
        """All messages. The request's own messages come last."""
        before = self._previous.conversation() if self._previous is not None else []
        return [*before, *self._added]

    def stored(self, render: Render, identifier: str) -> Render:
        """A render that also stores the response under `identifier` if the client asks for this. If
        the server stores nothing, the response says so.
        """
        if not self.is_stored:
            if self._is_wanted:
                neutral.note("store")
            return render
        owner, client = owner_of(flask.request), share_of(flask.request)
        added, previous, store = dumps(self._added), self._previous, self._store

        def keep(body: dict[str, Any]) -> None:
            answer = dumps(list(to_chat(_ITEMS.validate_python(body["output"]))))
            store.put(Turn(identifier, owner, client, (added, answer), dumps(body), previous))

        return _Kept(render, keep)


class _Kept(Wrapped):
    """Stores the whole response before its client can learn that the response has ended."""

    def __init__(self, render: Render, keep: Callable[[dict[str, Any]], None]) -> None:
        super().__init__(render)
        self._keep = keep

    def __call__(self, events: Sequence[engine.JobEvent]) -> Iterator[Body]:
        for body, text in self.inner(events):
            if body["type"] in ("response.completed", "response.incomplete"):
                self._keep(body["response"])
            yield body, text

    def whole(self) -> dict[str, Any]:
        body = super().whole()
        assert isinstance(body, dict)
        self._keep(body)
        return body


def find(store: StoredTurns, identifier: str) -> Turn:
    """The stored turn with this identifier that belongs to the current request's client. Raises
    NotStored.
    """
    turn = store.find(identifier, owner_of(flask.request))
    if turn is None:
        raise not_found(identifier)
    return turn


def not_found(identifier: str) -> NotStored:
    return NotStored(f"Response with id '{identifier[:200]}' not found.")


def _previous(request: ResponseRequest, here: Services) -> Turn | None:
    """The turn that a request continues. The turn's conversation passes the gate as if the client
    had sent it.
    """
    identifier = request.previous_response_id
    if identifier is None:
        return None
    if not here.stored.is_on:
        raise BadRequest(
            f"{PARAMETER} is not supported: this server stores nothing; send the whole conversation"
            " as input",
            PARAMETER,
            "unsupported_parameter",
        )
    turn = here.stored.find(identifier, owner_of(flask.request))
    if turn is None:
        message = f"Previous response with id '{identifier}' not found."
        raise NotStored(message, PARAMETER, "previous_response_not_found")
    if turn.length > here.settings.max_body_bytes:
        raise BadRequest(
            f"{PARAMETER}: the conversation is longer than the {here.settings.max_body_bytes} bytes"
            " that this server accepts",
            PARAMETER,
            "context_length_exceeded",
        )
    place = submit.leave()
    submit.enter(here.gate, turn.length + (place.size if place is not None else 0), here.settings)
    return turn
