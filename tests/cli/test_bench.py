"""`switchyard bench`: what it asks for, and what it tells."""

import json

import pytest

from switchyard.cli.bench import Measured, _row


def frame(**values):
    return b"data: %b\n\n" % json.dumps(values).encode()


TEXT = frame(choices=[{"text": "a"}], usage={"completion_tokens": 2})


@pytest.fixture
def bench(switchyard, answering):
    """Measures a server that answers so. Returns the command's result, and what was asked."""

    def bench(*arguments, status=200, body=TEXT + TEXT):
        server = answering(status, body)
        return switchyard("bench", "--url", server.url, *arguments), server

    return bench


def test_no_stream_has_its_prompt_from_anothers(bench):
    """Not even its beginning, which would be in the cache."""
    _, server = bench("--streams", "4", "--json")
    assert len({body["prompt"][:1] for _, _, body in server.asked}) == len(server.asked) == 4


def test_each_number_of_streams_has_its_line(bench):
    done, server = bench("--streams", "1,3", "--tokens", "7", "--key", "mine")
    assert done.exit_code == 0, done.output
    assert [line.split()[0] for line in done.output.splitlines()] == ["streams", "1", "3"]
    assert set(server.told("Authorization")) == {"Bearer mine"}
    assert all(body["max_tokens"] == 7 and body["ignore_eos"] for _, _, body in server.asked)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"status": 503, "body": b"later"}, "503: later"),
        ({"body": frame(error={"message": "broken"})}, "broken"),
        ({"body": frame(choices=[{"text": ""}])}, "no text"),
        ({"body": b""}, "no text"),
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
