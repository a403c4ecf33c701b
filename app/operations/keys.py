"""The API key file: names, hashes, roles and limits."""

import hashlib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import pydantic
from pydantic import Field

from switchyard.files import read_file, signature
from switchyard.settings import SettingsError

Role = Literal["user", "metrics", "admin"]
BudgetPeriod = Literal["day", "month", "total"]

MAX_BYTES = 64 << 20  # maximum size of a file
OTHERS = 0o007  # permission bits of others, who may not even read the file
RESERVED = ("host", "none", "other")  # names of payers that aren't keys

_BEGIN = re.compile(r"^(?=[ \t]*\[\[[ \t]*keys[ \t]*\]\])", re.MULTILINE)
_MULTILINE = re.compile(r"'''|\"\"\"")

# The signature of a file, which differs after a change of the file.
Signature = tuple[int, int, int]


class KeysError(SettingsError):
    """The key file can't be used. The message names the file and the wrong entry."""


class ApiKey(pydantic.BaseModel):
    """One entry of the file. It contains the key's hash, never the key itself."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str = Field(pattern="^[a-z0-9][a-z0-9_.-]{0,63}$")
    hash: str = Field(pattern="^sha256:[0-9a-f]{64}$")
    role: Role = "user"
    models: list[str] = ["*"]
    rpm: int | None = Field(None, ge=1)
    tpm: int | None = Field(None, ge=1)
    concurrency: int | None = Field(None, ge=1)
    max_tokens: int | None = Field(None, ge=1)
    budget_tokens: int | None = Field(None, ge=1)
    budget_period: BudgetPeriod | None = None
    priority: int = Field(0, ge=-(2**31), lt=2**31)
    max_priority: int | None = Field(None, ge=-(2**31), lt=2**31)
    expires: pydantic.AwareDatetime | None = None
    disabled: bool = False
    note: str = ""

    @pydantic.field_validator("name")
    @classmethod
    def _is_free(cls, value: str) -> str:
        if value in RESERVED:
            raise ValueError(f"{value!r} is a reserved name")
        return value

    @pydantic.field_validator("models")
    @classmethod
    def _are_names(cls, value: list[str]) -> list[str]:
        for name in value:
            if not name or "*" in name[:-1]:
                raise ValueError(f"{name!r} must be a name, with at most one *, at its end")
        return value

    @pydantic.model_validator(mode="after")
    def _may_have_its_own_priority(self) -> "ApiKey":
        if self.max_priority is not None and self.priority > self.max_priority:
            raise ValueError(f"priority {self.priority} is above max_priority {self.max_priority}")
        return self

    @pydantic.model_validator(mode="after")
    def _has_a_whole_budget(self) -> "ApiKey":
        if (self.budget_tokens is None) != (self.budget_period is None):
            raise ValueError("budget_tokens and budget_period must be set together")
        return self

    @property
    def digest(self) -> str:
        """The key's hash, in hexadecimal digits."""
        return self.hash.removeprefix("sha256:")

    def is_valid(self, now: datetime) -> bool:
        return not self.disabled and (self.expires is None or now < self.expires)

    def may_use(self, model: str) -> bool:
        return any(
            model.startswith(name[:-1]) if name.endswith("*") else model == name
            for name in self.models
        )


@dataclass(frozen=True, slots=True)
class KeyTable:
    """The entries of a key file at the time when it was read."""

    signature: Signature
    by_digest: Mapping[str, ApiKey]
    by_name: Mapping[str, ApiKey]
    by_text: Mapping[str, ApiKey] = field(repr=False)  # avoids parsing unchanged entries again


def digest_of(key: bytes) -> str:
    """The SHA-256 of a key. No slow hash is needed, because keys have 256 random bits."""
    return hashlib.sha256(key).hexdigest()


def signature_of(path: str) -> Signature:
    """The signature of a file. Raises OSError."""
    return signature(os.stat(path))


def read_keys(
    path: str,
    max_priority: int,
    has_ledger: bool = False,
    before: KeyTable | None = None,
    may_be_empty: bool = False,
) -> KeyTable:
    """Reads a key file. Raises KeysError.

    `max_priority`: the server's setting, which limits the priorities of keys. `has_ledger`: whether
    keys may have budgets. `before`: the last table, whose unchanged entries are not parsed again.
    `may_be_empty`: whether to accept a file without keys. Otherwise such a file is an error,
    because an editor or a full disk may have emptied it.
    """
    try:
        data, status = read_file(path, MAX_BYTES)
        text = data.decode()
    except (OSError, UnicodeDecodeError) as reason:
        raise KeysError(f"keys_file {path}: {reason}") from None
    if status.st_mode & OTHERS:
        mode = f"{status.st_mode & 0o777:04o}"
        raise KeysError(f"keys_file {path} is open to others (mode {mode}): run chmod o= {path}")
    try:
        table = parse_keys(text, max_priority, has_ledger, signature(status), before)
        if not (table.by_name or may_be_empty):
            raise KeysError("it has no [[keys]]")
        return table
    except KeysError as reason:
        raise KeysError(f"keys_file {path}: {reason}") from None


def parse_keys(
    text: str,
    max_priority: int,
    has_ledger: bool = False,
    signature: Signature = (0, 0, 0),
    before: KeyTable | None = None,
) -> KeyTable:
    """Parses the text of a file, like `read_keys`. Raises KeysError."""
    entries = _entries(text, before.by_text if before is not None else {})
    by_name: dict[str, ApiKey] = {}
    by_digest: dict[str, ApiKey] = {}
    for _, key in entries:
        if key.name in by_name:
            raise KeysError(f"{key.name}: two entries have this name")
        if key.digest in by_digest:
            raise KeysError(f"{key.name} and {by_digest[key.digest].name} have the same hash")
        if max(key.priority, key.max_priority or 0) > max_priority:
            raise KeysError(
                f"{key.name}: its priority, or max_priority, is above the server's max_priority"
                f" setting, {max_priority}"
            )
        if key.budget_tokens is not None and not has_ledger:
            raise KeysError(f"{key.name}: budget_tokens needs the server's ledger setting")
        by_name[key.name] = by_digest[key.digest] = key
    return KeyTable(signature, by_digest, by_name, dict(entries))


def blocks(text: str) -> list[str]:
    """The text of a file in blocks: first what precedes the entries, then each entry from its
    `[[keys]]` to the next.

    Joining the blocks gives the text. A file with multi-line strings is a single block.
    """
    return [text] if _MULTILINE.search(text) else _BEGIN.split(text)


def _entries(text: str, known: Mapping[str, ApiKey]) -> list[tuple[str, ApiKey]]:
    """The entries, each with its text. An entry whose text is in `known` is not parsed again.

    tomllib takes 20 us per entry, which adds up for a large file at each change.
    """
    head, *others = blocks(text)
    found = [("", _check(entry, i)) for i, entry in enumerate(_parse(head, text), 1)]
    for part in others:
        key = known.get(part)
        if key is None:
            [entry] = _parse(part, text)
            key = _check(entry, len(found) + 1)
        found.append((part, key))
    return found


def _parse(part: str, text: str) -> list[Any]:
    try:
        values = tomllib.loads(part)
    except tomllib.TOMLDecodeError as reason:
        raise KeysError(_reason(text) or str(reason)) from None
    for name in values:
        if name != "keys":
            raise KeysError(f"{name} is unknown; entries must be [[keys]] tables")
    entries = values.get("keys", [])
    if not isinstance(entries, list):
        raise KeysError("entries must be [[keys]] tables, not [keys]")
    return entries


def _reason(text: str) -> str:
    """The reason why a text isn't TOML, with the line number in the whole file. Empty if the text
    is TOML.
    """
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as reason:
        return str(reason)
    return ""


def _check(entry: Any, number: int) -> ApiKey:
    try:
        return ApiKey.model_validate(entry)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field_name = ".".join(map(str, first["loc"]))
        name = entry.get("name") if isinstance(entry, dict) else None
        where = name if isinstance(name, str) and name else f"entry {number}"
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            message = "is unknown"
        raise KeysError(": ".join(filter(None, (where[:64], field_name, message)))) from None


def now() -> datetime:
    return datetime.now(UTC)
