"""The introductions that a server and a shared engine exchange. They are JSON, because each may
come from a stranger.
"""

import json
from dataclasses import asdict, dataclass, fields
from typing import TypeVar

from switchyard.engine.links.hosts.peer import Stranger


@dataclass(frozen=True, slots=True)
class Hello:
    """A server's introduction: its process id, and the fingerprint of the model for which it
    tokenizes. `is_look`: the server only asks whether the engine would accept it or, without a
    fingerprint, what state the engine is in.
    """

    pid: int
    fingerprint: str
    is_look: bool = False


@dataclass(frozen=True, slots=True)
class Welcome:
    """An engine's introduction. `refusal`: why it does not accept the server. `is_ready`: the model
    is loaded, and the engine isn't about to end.
    """

    pid: int
    refusal: str = ""
    is_ready: bool = False


Introduction = TypeVar("Introduction", Hello, Welcome)


def to_json(one: Hello | Welcome) -> bytes:
    return json.dumps(asdict(one)).encode()


def from_json(kind: type[Introduction], data: bytes) -> Introduction:
    """Ignores fields that `kind` doesn't have, because a later version may send more. Raises
    Stranger.
    """
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise Stranger("its introduction is not a JSON object")
    known = {one.name: given[one.name] for one in fields(kind) if one.name in given}
    types = {one.name: one.type for one in fields(kind)}
    if wrong := [name for name, value in known.items() if type(value) is not types[name]]:
        raise Stranger(f"its introduction has a value of the wrong type in {wrong[0]}")
    try:
        return kind(**known)
    except TypeError:  # a field is missing
        raise Stranger("its introduction is incomplete") from None
