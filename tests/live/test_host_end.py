"""The end of a host application under its own gunicorn."""

import concurrent.futures
import time

from tests.live.conftest import GUNICORN

HOST = [*GUNICORN[:3], "--threads", "4", "--graceful-timeout", "40", "--bind", "127.0.0.1:{port}"]


def test_sigterm_during_a_load_ends_it_at_once(start, tmp_path):
    server = start([*HOST, "tests.live.loading_host:app"]).wait_until_answers("/")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.get, "/text")
        server.wait_to_say("loads")
        begin = time.monotonic()
        assert server.stop() == 0, server.output
        assert answer.result().status_code == 500
        assert time.monotonic() - begin < 20  # of the 40 that requests may take, and the load's 60
    assert "the server is shutting down" in server.output
