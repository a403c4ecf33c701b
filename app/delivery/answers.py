"""Makes responses from transcripts, both for the request itself and for clients that resume a
stream or repeat an Idempotency-Key. Runs on request threads.
"""

import hashlib
import weakref
from collections.abc import Callable, Sequence
from functools import partial

import flask
import werkzeug.exceptions

from switchyard import engine
from switchyard.app.config import Settings
from switchyard.app.delivery.framing import EVENTS, Framing, StreamWriter
from switchyard.app.delivery.output import Output
from switchyard.app.delivery.reader import Submitted
from switchyard.app.delivery.render import Render
from switchyard.app.delivery.sender import Sender, Streamed
from switchyard.app.delivery.transcript import KeptTranscript, Transcript, Writer
from switchyard.app.delivery.transcripts import Claim, Transcripts
from switchyard.app.delivery.watch import WatchedClient
from switchyard.app.exceptions import BadRequest
from switchyard.app.http.body import dumps, read_bytes
from switchyard.app.http.client import Client
from switchyard.app.http.identity import key_of, owner_of
from switchyard.app.operations.account import Account, account_of

MAX_KEY = 255  # maximum length of an Idempotency-Key, in characters
CLAIM = "switchyard.claim"  # key in the environ of a request that has a claim


class WholeWriter:
    """Writes an answer that isn't streamed. The answer's body is a single frame."""

    mimetype = "application/json"
    is_streamed = False
    heartbeat = b""
    comment = b""
    is_numbered = False

    def __init__(self, render: Render) -> None:
        self._render = render

    def write(self, events: Sequence[engine.JobEvent]) -> list[bytes]:
        self._render.add(events)
        return []

    def end(self) -> list[bytes]:
        return [dumps(self._render.whole())]

    def fail(self, error: Exception) -> list[bytes]:
        return []  # the error becomes a response with its own status


def event_position() -> tuple[str, int] | None:
    """The identifier of a response, and how many of its events the client has received.

    Both come from the current request's Last-Event-ID header. Returns None without this header.
    Raises BadRequest.
    """
    event_id = flask.request.headers.get("Last-Event-ID")
    if not event_id:
        return None
    identifier, _, number = event_id.rpartition(":")
    if not (identifier and number.isascii() and number.isdigit() and len(number) < 10):
        raise BadRequest("Last-Event-ID: must be the id of an event in a stream", "Last-Event-ID")
    return identifier, int(number)


class Answers:
    """Makes the responses of one application. Holds the sender of streams and the transcripts."""

    def __init__(
        self, settings: Settings, num_jobs: Callable[[], int], prepared: Callable[[], None]
    ) -> None:
        """`num_jobs`: the number of jobs that have not ended. `prepared`: see
        `Threads.on_prepared`.
        """
        self.transcripts = Transcripts()
        # Open streams; `add` and `discard` are atomic under the GIL.
        self.streams: set[Output] = set()
        self._settings = settings
        self._num_jobs = num_jobs
        self._prepared = prepared
        self._sender = Sender()

    def whole(self, submitted: Submitted, render: Render) -> flask.Response:
        """The whole answer as a response. Waits until all jobs have ended.

        Raises ClientGone, TimedOut, or the error of the first job that fails. After any of these,
        the remaining jobs are cancelled.
        """
        submitted.stream.is_patient = True
        return self._begin(submitted, WholeWriter(render), 0.0)

    def stream(self, submitted: Submitted, render: Render, framing: Framing) -> flask.Response:
        """A streamed response, which continues until the jobs have ended.

        Waits for the first frame, so that if a job fails immediately, the response has the status
        of its error. Waits for at most one heartbeat interval, because by then the client must see
        that it is being served. Raises the job's error, ClientGone or TimedOut.
        """
        keep = self._settings.resume_timeout if framing.mimetype == EVENTS else 0.0
        identifier = submitted.identifier if keep else None
        writer = StreamWriter(render, framing, identifier, self._settings.heartbeat)
        return self._begin(submitted, writer, keep)

    def resume(self, identifier: str, position: int) -> flask.Response:
        """The rest of a kept stream, after its first `position` frames; status 204 if nothing is
        left.

        Raises werkzeug's NotFound if this client has no such stream, and BadRequest if the stream
        has no such frame.
        """
        transcript = self.transcripts.find(identifier, owner_of(flask.request))
        if transcript is None or not self._join(transcript):
            raise werkzeug.exceptions.NotFound(
                f"this server has no stream {identifier[:100]!r} for this client; it keeps a stream"
                f" for {self._settings.resume_timeout:g} seconds after its client has left"
            )
        output = self._output(transcript, position)
        if position > transcript.num_frames:
            output.close()
            raise BadRequest(f"Last-Event-ID: there is no event {position} yet", "Last-Event-ID")
        if output.is_finished:  # status 204 stops an EventSource from reconnecting
            output.close()
            return flask.Response(status=204)
        return self._respond(output, transcript.writer)

    def resume_or_answer(self, view: Callable[[], flask.Response]) -> flask.Response:
        """The response to the current request.

        With Last-Event-ID, this is the rest of that stream; with an Idempotency-Key, the response
        to the first request with the key; otherwise, what `view` returns.
        """
        if (event := event_position()) is not None:
            self._read_body()
            return self.resume(*event)
        key = flask.request.headers.get("Idempotency-Key")
        return view() if key is None else self._answer_once(key, view)

    def _begin(self, submitted: Submitted, writer: Writer, keep: float) -> flask.Response:
        """The response to the current request, from its own jobs. The transcript is kept for `keep`
        seconds; with an Idempotency-Key, for at least `idempotency_timeout` seconds. Raises any
        error before the first frame.
        """
        claim: Claim | None = flask.request.environ.get(CLAIM)
        if claim is not None:
            keep = max(keep, self._settings.idempotency_timeout)
        if keep:
            kept = KeptTranscript(submitted, writer, keep)
            kept.join()
            self.transcripts.keep(kept, owner_of(flask.request), claim)
        transcript = kept if keep else Transcript(submitted, writer)
        client = WatchedClient(flask.request.environ, writer.is_streamed)
        return self._respond(Output(transcript, client, self._settings.heartbeat), writer)

    def _respond(self, output: Output, writer: Writer) -> flask.Response:
        """A response from `output`, whole or streamed. Raises any error before the first frame."""
        self._prepared()
        if not writer.is_streamed:
            try:
                return flask.Response(output.wait_whole(), mimetype=writer.mimetype)
            finally:
                output.close()
        try:
            output.wait_first()
        except BaseException:
            output.close()
            raise
        send_timeout = self._settings.send_timeout
        response = Streamed(output, self._sender, send_timeout, writer.mimetype)
        response.headers["Cache-Control"] = "no-cache"
        response.headers["X-Accel-Buffering"] = "no"
        # A `finally` in the generator that writes would not be enough: if the client leaves before
        # the first byte, the generator never starts, and its `finally` never runs.
        self.streams.add(output)
        account = account_of(flask.request.environ)
        # After a reset, some servers, such as werkzeug's, drop the response without closing it.
        close = partial(self._close, output, account)
        dropped = weakref.finalize(response, engine.ALARMS.set, 0.0, close)
        dropped.atexit = False
        response.call_on_close(lambda: dropped.detach() and close())
        return response

    def _close(self, output: Output, account: Account | None) -> None:
        self.streams.discard(output)
        if account is not None and output.is_cut_off:
            account.leave(output.has_begun)
        output.close()

    def _answer_once(self, key: str, view: Callable[[], flask.Response]) -> flask.Response:
        if not self._settings.idempotency_timeout:
            raise BadRequest(
                "Idempotency-Key: this server keeps no responses, because its idempotency_timeout"
                " is 0",
                "Idempotency-Key",
                "unsupported_parameter",
            )
        if not 0 < len(key) <= MAX_KEY:
            raise BadRequest(
                f"Idempotency-Key: must have 1 to {MAX_KEY} characters", "Idempotency-Key"
            )
        request = flask.request
        fingerprint = hashlib.sha256(
            b"\0".join(
                [
                    request.full_path.encode(),
                    request.headers.get("Content-Type", "").encode(),
                    request.headers.get("Accept", "").encode(),
                    self._read_body(),
                ]
            )
        ).digest()
        whose = owner_of(request)
        if not key_of(request):
            # Two clients at one address may use the same Idempotency-Key for different requests.
            whose += fingerprint.hex()
        watch = WatchedClient(request.environ, serves_half_closed=True)
        while True:
            claim, is_new = self.transcripts.claim((whose, request.path, key), fingerprint)
            if is_new:
                request.environ[CLAIM] = claim
                try:
                    return view()
                finally:
                    self.transcripts.settle(claim)
            self._prepared()
            watch.wait(_wait_for(claim), claim.settled.is_set)
            idle = max(self._settings.max_jobs - self._num_jobs(), 0)
            if claim.transcript is not None and self._join(claim.transcript, idle // 2):
                return self._respond(self._output(claim.transcript), claim.transcript.writer)

    def _join(self, transcript: KeptTranscript, num_idle: int = 0) -> bool:
        """Adds a reader to a transcript. `num_idle`: the number of request threads outside the
        reserve that added readers may hold.
        """
        return self.transcripts.join(transcript, self._settings.reserve_threads // 2 + num_idle)

    def _output(self, transcript: Transcript, position: int = 0) -> Output:
        """An output for the current request's client, starting at frame `position` of a
        transcript.
        """
        client = WatchedClient(flask.request.environ, transcript.writer.is_streamed)
        client.limit_sends(self._settings.send_timeout)
        return Output(transcript, client, self._settings.heartbeat, position)

    def _read_body(self) -> bytes:
        with Client(flask.request.environ).receiving(self._settings.body_timeout):
            return read_bytes(self._settings.max_body_bytes)


def _wait_for(claim: Claim) -> Callable[[float], Sequence[None]]:
    """A `take` for WatchedClient.wait that waits until the claim is settled. Returns no items."""

    def wait(seconds: float) -> Sequence[None]:
        claim.settled.wait(seconds)
        return ()

    return wait
