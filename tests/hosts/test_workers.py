"""What is particular to one server each: the sync worker, the reloader."""

import pytest

from tests.conftest import wait_for
from tests.hosts.conftest import ENDLESS
from tests.hosts.test_hosts import HELLO, pieces_of

pytestmark = pytest.mark.hosts


@pytest.mark.parametrize("is_remote", [True, False], ids=["client mode", "own"])
def test_the_sync_worker_is_told_and_goes_on_behind_who_leaves(start, is_remote):
    host = start("sync, 1 worker", is_remote)
    before = host.num_cancelled()
    assert host.post("/text", HELLO).ok
    with host.post("/stream", ENDLESS, stream=True) as response:
        assert next(pieces_of(response))
    assert host.post("/text", HELLO).ok  # once that one is over: it is the only worker
    wait_for(lambda: host.num_cancelled() == before + 1)
    assert host.output.count("one request at a time") == 1
    assert "loads its own models" not in host.output


def test_the_reloader_s_new_process_generates_and_the_old_one_s_job_is_cancelled(start):
    host = start("flask run", True)
    before = host.num_cancelled()
    with host.post("/stream", ENDLESS, stream=True) as response:
        assert next(pieces_of(response))
        module = host.directory / "host.py"
        module.write_text(module.read_text() + "\n")
        wait_for(lambda: host.num_cancelled() == before + 1 and not host.jobs())
    host.wait_until_answers("/")
    assert host.post("/text", HELLO).ok
