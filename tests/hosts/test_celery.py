"""Tasks of a host application in celery's prefork pool: answers, streams, tasks that are ended."""

import pytest
import requests

from tests.conftest import wait_for
from tests.hosts.conftest import ENDLESS, Host, make_directory, measured, program
from tests.hosts.test_hosts import ANSWER, HELLO, seconds_until_cancelled

pytestmark = pytest.mark.hosts

WORKER = ("--app", "tasks:queue", "worker", "--pool", "prefork", "--concurrency", "2")

# How a task is ended: what it is begun with, and what celery says once it has done so.
ENDS = {
    "revoked": ({}, "Terminating"),
    "out of time": ({"soft_time_limit": 2}, "Soft time limit"),
    "killed": ({"time_limit": 2}, "Hard time limit"),
}


class Shop:
    """A view that begins tasks, and the worker with its pool."""

    def __init__(self, front, worker):
        self._front = front
        self.worker = worker

    def begin(self, name, asked, **options):
        response = self._front.post(f"/tasks/{name}", {**asked, "options": options})
        assert response.ok, self._front.output
        return f"{self._front.url}/tasks/{response.text}"

    def end_of(self, task, seconds=60):
        return wait_for(lambda: self._ended(task), seconds)

    def _ended(self, task):
        found = requests.get(task, timeout=30).json()
        return None if found["state"] in ("PENDING", "STARTED", "RETRY") else found


@pytest.fixture
def start_shop(tmp_path, switchyard, monkeypatch):
    """Start both, in client mode or with models of the pool's own; they are stopped in the end."""
    hosts = []
    make_directory(tmp_path)
    celery = program("celery")
    python = celery.replace("bin/celery", "bin/python")

    def start(is_remote=True):
        server = switchyard if is_remote else None
        worker = Host([celery, *WORKER, "--loglevel", "info"], tmp_path, server)
        hosts.append(worker)
        monkeypatch.delenv("START_BEFORE_THE_FORK", raising=False)
        front = Host(
            [python, "-m", "flask", "--app", "tasks", "run", "--port", "{port}"], tmp_path, server
        )
        hosts.append(front)
        front.wait_until_answers("/")
        wait_for(lambda: " ready." in worker.output, 60)
        return Shop(front, worker)

    yield start
    for host in hosts:
        assert host.end() == [], host.output


def test_tasks_have_their_answers_and_streams(start_shop):
    shop = start_shop()
    tasks = [shop.begin("text", HELLO) for _ in range(2)]
    for task in tasks:
        assert shop.end_of(task)["result"].startswith(ANSWER)
    task = shop.begin("pieces", HELLO)
    assert shop.end_of(task)["state"] == "SUCCESS"
    pieces = requests.get(f"{task}/pieces", timeout=30).json()
    assert len(pieces) > 3 and "".join(pieces).startswith(ANSWER)


@pytest.mark.parametrize("name", ["text", "pieces"])
@pytest.mark.parametrize("how", ENDS)
def test_a_task_that_is_ended_cancels_its_job(start_shop, how, name):
    shop = start_shop()
    before = shop.worker.num_cancelled()
    options, words = ENDS[how]
    task = shop.begin(name, ENDLESS, **options)
    wait_for(lambda: len(shop.worker.jobs()) == 1)
    if how == "revoked":
        assert requests.delete(task, timeout=30).ok
    wait_for(lambda: words in shop.worker.output)
    seconds = seconds_until_cancelled(shop.worker, before)
    measured.append(f"celery, {name}: cancelled {seconds:.2f} s after its task was {how}")
    assert shop.end_of(task)["state"] == ("REVOKED" if how == "revoked" else "FAILURE")
    assert shop.end_of(shop.begin("text", HELLO))["result"].startswith(ANSWER)


def test_a_second_process_of_the_pool_that_loads_a_model_says_so(start_shop, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # where a process says what it serves
    shop = start_shop(is_remote=False)
    busy = shop.begin("text", ENDLESS)
    pid = wait_for(lambda: "".join(path.read_text() for path in tmp_path.glob("*.lock")), 60)
    found = shop.end_of(shop.begin("text", HELLO))
    assert found["result"].startswith(ANSWER)
    assert f"process {pid} of this user also serves" in shop.worker.output
    # Not revoked: celery 5.7 may hang at its end for a lock of a process that it has replaced.
    assert shop.end_of(busy, 180)["state"] == "SUCCESS"


def test_a_model_that_was_started_before_the_fork_is_refused(start_shop, monkeypatch):
    monkeypatch.setenv("START_BEFORE_THE_FORK", "1")
    shop = start_shop(is_remote=False)
    found = shop.end_of(shop.begin("text", HELLO))
    assert found["state"] == "FAILURE"
    assert "call Switchyard.start after the fork" in found["result"]
