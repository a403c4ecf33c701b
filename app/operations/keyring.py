"""The valid API keys. Thread-safe. When the key file changes, a separate thread reads it."""

import heapq
import hmac
import logging
import os
import threading
import time
from collections.abc import Callable, Collection

from switchyard import engine
from switchyard.app.operations.keys import (
    ApiKey,
    KeysError,
    KeyTable,
    digest_of,
    now,
    read_keys,
    signature_of,
)

logger = logging.getLogger(__name__)
audit = logging.getLogger("switchyard.audit")

LOOK = 1.0  # seconds between two checks of the file while requests arrive
WATCH = 2.0  # seconds between two checks while no requests arrive
PATIENCE = 2.0  # seconds that the request that notices a change waits for the new keys
SETTLED = 0.2  # seconds without a change after which a file counts as written
MOST_WRITING = 10.0  # seconds after which a file that never settles is an error
MOST_NAMED = 10  # maximum number of names of each kind in a line of the audit log

NOTHING = digest_of(b"")  # compared with an unknown digest, so that the lookup takes the same time


class Keyring:
    """The keys of one application. Each new table is passed to `on_change`, including the first."""

    def __init__(
        self,
        path: str,
        max_priority: int,
        has_ledger: bool,
        on_change: Callable[[KeyTable], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Reads the file. Raises KeysError."""
        self._path = os.path.abspath(path)
        self._max_priority = max_priority
        self._has_ledger = has_ledger
        self._on_change = on_change
        self._clock = clock
        self._table = read_keys(self._path, max_priority, has_ledger)
        # The signature of the file that was read last, valid or not.
        self._seen: object = self._table.signature
        self._looking = threading.Lock()  # held during a check, which may start the reader
        self._reader: threading.Thread | None = None
        self._closing = threading.Event()
        self._next_look = clock() + LOOK
        self.num_reloads = self.num_failed = 0
        on_change(self._table)
        logger.info("%d API keys in %s", len(self._table.by_name), self._path)

    @property
    def entries(self) -> Collection[ApiKey]:
        """All entries of the file, including invalid ones."""
        return self._table.by_name.values()

    def find(self, key: bytes) -> ApiKey | None:
        """The entry of a valid key, or None. Looking up an invalid key takes as long as looking up
        a valid one.
        """
        if self._clock() >= self._next_look:
            self.renew()
        digest = digest_of(key)
        entry = self._table.by_digest.get(digest)
        is_same = hmac.compare_digest(digest, NOTHING if entry is None else entry.digest)
        is_valid = entry is not None and entry.is_valid(now())
        return entry if is_same and is_valid else None

    def find_again(self, entry: ApiKey) -> ApiKey | None:
        """The current entry of a key that was valid before, for long connections. None if the key
        is no longer valid.
        """
        if self._clock() >= self._next_look:
            self.renew()
        found = self._table.by_digest.get(entry.digest)
        return found if found is not None and found.is_valid(now()) else None

    def renew(self, patience: float = PATIENCE) -> None:
        """Reads the file if it has changed. An invalid file changes nothing, and is logged once.
        Returns after `patience` seconds even if the file hasn't been read by then; until it is, the
        old keys stay valid.
        """
        if not self._looking.acquire(blocking=False):
            return  # another thread is checking; the new keys apply to a later request
        try:
            self._next_look = self._clock() + LOOK
            reader = self._begin()
        finally:
            self._looking.release()
        if reader is not None:
            reader.join(patience)

    def watch(self) -> None:
        """Checks the file until `close`, even while no requests arrive."""
        if not self._closing.is_set():
            self.renew(patience=0.0)
            engine.ALARMS.set(WATCH, self.watch)

    def close(self) -> None:
        self._closing.set()
        if self._reader is not None:
            self._reader.join(PATIENCE)

    def _begin(self) -> threading.Thread | None:
        """Starts the reader if the file has changed and no reader runs."""
        if self._look() == self._seen or (self._reader is not None and self._reader.is_alive()):
            return None
        self._reader = threading.Thread(target=self._read, name="keys", daemon=True)
        self._reader.start()
        return self._reader

    def _look(self) -> object:
        """A value that changes when the file changes."""
        try:
            return signature_of(self._path)
        except OSError as reason:
            return str(reason)

    # The reader's thread

    def _read(self) -> None:
        seen: object = None
        try:
            seen = self._settled()
            table = read_keys(self._path, self._max_priority, self._has_ledger, self._table)
        except KeysError as reason:
            self._seen = seen
            self.num_failed += 1
            logger.error("can't reload the API keys, so the previous ones stay in use: %s", reason)
            return
        except Exception:
            self._seen = seen
            self.num_failed += 1
            logger.exception("can't reload the API keys, so the previous ones stay in use")
            return
        self.num_reloads += 1
        before, self._table = self._table, table
        self._seen = table.signature
        self._on_change(table)
        _tell(before, table)

    def _settled(self) -> object:
        """The file's signature, once two consecutive checks give the same one, because an editor
        may write the file in place. Raises KeysError.
        """
        before = self._look()
        for _ in range(int(MOST_WRITING / SETTLED)):
            self._closing.wait(SETTLED)
            now = self._look()
            if now == before:
                return now
            before = now
        raise KeysError(f"keys_file {self._path} is still changing after {MOST_WRITING:g} s")


def _tell(before: KeyTable, after: KeyTable) -> None:
    added = after.by_name.keys() - before.by_name.keys()
    removed = before.by_name.keys() - after.by_name.keys()
    changed = {
        name
        for name, key in after.by_name.items()
        if name in before.by_name and key is not before.by_name[name] != key
    }
    names = {"added": added, "removed": removed, "changed": changed}
    said = [f"{what} {_named(found)}" for what, found in names.items() if found]
    audit.warning("server: keys reloaded: %s", "; ".join(said) or "no changes")


def _named(names: Collection[str]) -> str:
    """Some of the names, as a short line."""
    few = heapq.nsmallest(MOST_NAMED, names)
    return ", ".join(few) + (
        f" and {len(names) - len(few):,} more" if len(few) < len(names) else ""
    )
