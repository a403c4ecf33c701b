"""`switchyard bench`: what it asks for, and what it tells."""

import http.server
import json
import threading

import pytest
from click.testing import CliRunner

from switchyard.cli import main
from switchyard.cli.bench import Measured, _row


def frame(**values):
    return b"data: %b\n\n" % json.dumps(values).encode()


TEXT = frame(choices=[{"text": "a"}], usage={"completion_tokens": 2})


@pytest.fixture
def bench():
    """Measures a server that answers with this status and these frames. Returns the command's
    result, and the headers and bodies that the server got.
    """

    def bench(*arguments, status=200, frames=(TEXT, TEXT)):
        asked = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                asked.append((self.headers, body))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(b"".join(frames))

            def log_message(self, *args):
                pass

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            url = f"http://127.0.0.1:{server.server_port}"
            done = CliRunner().invoke(main, ["bench", "--url", url, *arguments])
            server.shutdown()
            thread.join()
        return done, asked

    return bench


def test_no_stream_has_its_prompt_from_anothers(bench):
    """Not even its beginning, which would be in the cache."""
    done, asked = bench("--streams", "4", "--json")
    assert done.exit_code == 0, done.output
    assert len({body["prompt"][:1] for _, body in asked}) == len(asked) == 4


def test_each_number_of_streams_has_its_line(bench):
    done, asked = bench("--streams", "1,3", "--tokens", "7", "--key", "mine")
    assert done.exit_code == 0, done.output
    assert [line.split()[0] for line in done.output.splitlines()] == ["streams", "1", "3"]
    assert {(head["Authorization"], body["max_tokens"]) for head, body in asked} == {
        ("Bearer mine", 7)
    }
    assert all(body["ignore_eos"] for _, body in asked)


def test_the_key_may_be_in_the_environment(bench, monkeypatch):
    monkeypatch.setenv("SWITCHYARD_KEY", "mine")
    _, [(head, _)] = bench("--streams", "1")
    assert head["Authorization"] == "Bearer mine"
    _, [(head, _)] = bench("--streams", "1", "--key", "other")
    assert head["Authorization"] == "Bearer other"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"status": 503, "frames": [b"later"]}, "503: later"),
        ({"frames": [frame(error={"message": "broken"})]}, "broken"),
        ({"frames": [frame(choices=[{"text": ""}])]}, "no text"),
        ({"frames": []}, "no text"),
    ],
)
def test_a_stream_that_fails_is_an_error(bench, answer, says):
    done, _ = bench("--streams", "2", "--json", **answer)
    [row] = json.loads(done.stdout)
    assert (done.exit_code, row["errors"], row["tokens_per_second"]) == (1, 2, 0)
    assert says in row["error"] and says in done.stderr


def test_a_line_has_rates_waits_and_gaps():
    streams = [Measured(1.0, [1.1, 1.2, 1.4], 6), Measured(1.0, [1.3, 1.5], 4)]
    row = _row(4, [*streams, Measured(1.0, error="broken"), Measured(1.0)])
    assert row == pytest.approx(
        {
            "streams": 4,
            "tokens_per_second": 10 / 0.5,
            "first_p50_ms": 200,
            "first_p99_ms": 298,
            "gap_p50_ms": 200,
            "gap_p99_ms": 200,
            "errors": 2,
            "error": "broken",
        }
    )


def test_the_rate_is_that_from_the_first_begin_on():
    row = _row(2, [Measured(1.0, [2.0], 1), Measured(1.5, [3.0], 3)])
    assert row["tokens_per_second"] == pytest.approx(4 / 2.0)


@pytest.mark.parametrize("arguments", [["--tokens", "0"], ["--streams", "1,0"]])
def test_nothing_is_not_measured(bench, arguments):
    done, asked = bench(*arguments)
    assert (done.exit_code, asked) == (2, [])
