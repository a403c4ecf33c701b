"""The valid API keys. The file of keys is read again when it changes. Any thread."""

import hmac
import logging
import os
import threading
import time
from collections.abc import Callable

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

LOOK = 1.0  # seconds between two checks of the file, while requests come
WATCH = 2.0  # the same while none come

NOTHING = digest_of(b"")  # compared with an unknown digest, so that it takes the same time


class Keyring:
    """The keys of one application. Each new table goes to `on_change`, the first included."""

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
        self._seen: object = self._table.signature  # of the file last read, valid or not
        self._reading = threading.Lock()  # held while the file is read
        self._next_look = clock() + LOOK
        self._is_closed = False
        self.num_reloads = self.num_failed = 0
        on_change(self._table)
        logger.info("%d API keys in %s", len(self._table.by_name), self._path)

    def find(self, key: bytes) -> ApiKey | None:
        """The entry of a valid key, or None. An invalid key takes as long as a valid one."""
        if self._clock() >= self._next_look:
            self.renew()
        digest = digest_of(key)
        entry = self._table.by_digest.get(digest)
        is_same = hmac.compare_digest(digest, NOTHING if entry is None else entry.digest)
        is_valid = entry is not None and entry.is_valid(now())
        return entry if is_same and is_valid else None

    def find_again(self, entry: ApiKey) -> ApiKey | None:
        """The present entry of a key that was valid before, for long connections. None: invalid."""
        if self._clock() >= self._next_look:
            self.renew()
        found = self._table.by_digest.get(entry.digest)
        return found if found is not None and found.is_valid(now()) else None

    def renew(self) -> None:
        """Reads the file if it has changed. A wrong file changes nothing, and is logged once."""
        if not self._reading.acquire(blocking=False):
            return  # another thread reads it; its result holds from the next request on
        try:
            self._next_look = self._clock() + LOOK
            self._renew()
        finally:
            self._reading.release()

    def watch(self) -> None:
        """Also checks the file while no requests come, until `close`."""
        if not self._is_closed:
            self.renew()
            engine.ALARMS.set(WATCH, self.watch)

    def close(self) -> None:
        self._is_closed = True

    def _renew(self) -> None:
        signature: object
        try:
            signature = signature_of(self._path)
        except OSError as reason:
            signature = str(reason)
        if signature == self._seen:
            return
        self._seen = signature
        try:
            table = read_keys(self._path, self._max_priority, self._has_ledger, self._table)
        except KeysError as reason:
            self.num_failed += 1
            logger.error("the API keys stay as they were: %s", reason)
            return
        self.num_reloads += 1
        before, self._table = self._table, table
        self._seen = table.signature
        self._on_change(table)
        _tell(before, table)


def _tell(before: KeyTable, after: KeyTable) -> None:
    added = after.by_name.keys() - before.by_name.keys()
    removed = before.by_name.keys() - after.by_name.keys()
    changed = {
        name
        for name, key in after.by_name.items()
        if name in before.by_name and key is not before.by_name[name] != key
    }
    names = {"added": added, "removed": removed, "changed": changed}
    said = [f"{what} {', '.join(sorted(found))}" for what, found in names.items() if found]
    audit.warning("server: keys reloaded: %s", "; ".join(said) or "as they were")
