"""The kept transcripts, keyed by response and by Idempotency-Key. Runs on request threads."""

import threading
import time
from dataclasses import dataclass, field

import werkzeug.exceptions

from switchyard import engine
from switchyard.app.delivery.transcript import KeptTranscript

MAX_COUNT = 1000  # kept answers; beyond this number, the oldest that have ended are dropped
MAX_BYTES = 64 * 1024 * 1024  # bytes of all kept answers

Key = tuple[str, str, str]  # owner, path, Idempotency-Key


@dataclass(slots=True, eq=False)
class Claim:
    """A request's claim on an Idempotency-Key.

    A claim is settled as soon as the request has a transcript to read, or has been refused.
    """

    key: Key
    fingerprint: bytes  # hash of the request
    transcript: KeptTranscript | None = None
    settled: threading.Event = field(default_factory=threading.Event)

    @property
    def is_void(self) -> bool:
        """Whether the next request with the key counts as the first again, because an error does
        not count as an answer.
        """
        if self.transcript is None:
            return self.settled.is_set()
        return self.transcript.error is not None or self.transcript.is_over(time.monotonic())


@dataclass(slots=True)
class _Kept:
    transcript: KeptTranscript
    owner: str
    claim: Claim | None


class Transcripts:
    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the fields below
        self._kept: dict[str, _Kept] = {}  # by the response's identifier, oldest first
        self._claims: dict[Key, Claim] = {}

    def keep(self, transcript: KeptTranscript, owner: str, claim: Claim | None) -> None:
        """Keeps a transcript for `owner`, and settles `claim` with it."""
        with self._lock:
            self._kept[transcript.identifier] = _Kept(transcript, owner, claim)
            self._forget_old()
        if claim is not None:
            claim.transcript = transcript
            claim.settled.set()

    def find(self, identifier: str, owner: str) -> KeptTranscript | None:
        """Finds, by the response's identifier, this owner's kept stream with numbered frames."""
        with self._lock:
            self._forget_old()
            kept = self._kept.get(identifier)
        if kept is None or kept.owner != owner or not kept.transcript.writer.is_numbered:
            return None
        return kept.transcript

    def claim(self, key: Key, fingerprint: bytes) -> tuple[Claim, bool]:
        """The claim on a key, and whether it is new. The caller must settle a new claim.

        Raises werkzeug's UnprocessableEntity if a different request has used the key.
        """
        with self._lock:
            self._forget_old()
            claim = self._claims.get(key)
            if claim is None or claim.is_void:
                claim = self._claims[key] = Claim(key, fingerprint)
                return claim, True
        if claim.fingerprint != fingerprint:
            raise werkzeug.exceptions.UnprocessableEntity(
                "this Idempotency-Key was used with another request: use a new key, or repeat the"
                " request's path, body, Content-Type and Accept exactly"
            )
        return claim, False

    def settle(self, claim: Claim) -> None:
        """Settles a claim. A claim without a transcript is dropped, so the next request starts
        over.
        """
        with self._lock:
            if claim.transcript is None and self._claims.get(claim.key) is claim:
                del self._claims[claim.key]
        claim.settled.set()

    def join(self, transcript: KeptTranscript, max_extra: int) -> bool:
        """Adds a reader to a transcript. Returns False if the transcript has already been
        abandoned. `max_extra`: the maximum number of readers besides the first reader of each
        answer. The number is limited because each reader holds a request thread. Raises engine.Full
        if this number has been reached.
        """
        with self._lock:
            extra = sum(max(kept.transcript.num_readers - 1, 0) for kept in self._kept.values())
            if transcript.num_readers and extra >= max_extra:
                raise engine.Full(
                    f"{extra} requests are already reading other requests' answers,"
                    " which is the maximum",
                    1.0,
                )
            return transcript.join()

    def _forget_old(self) -> None:
        now = time.monotonic()
        for kept in [k for k in self._kept.values() if k.transcript.is_over(now)]:
            self._forget(kept)
        num_bytes = sum(kept.transcript.num_bytes for kept in self._kept.values())
        for kept in list(self._kept.values()):
            if len(self._kept) <= MAX_COUNT and num_bytes <= MAX_BYTES:
                return
            if kept.transcript.is_finished and not kept.transcript.num_readers:
                self._forget(kept)
                num_bytes -= kept.transcript.num_bytes

    def _forget(self, kept: _Kept) -> None:
        del self._kept[kept.transcript.identifier]
        if kept.claim is not None and self._claims.get(kept.claim.key) is kept.claim:
            del self._claims[kept.claim.key]
