"""A shared engine, to which several servers connect."""

import itertools
import logging
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from switchyard.engine.config import ModelConfig
from switchyard.engine.errors import EngineError
from switchyard.engine.held import Backlog
from switchyard.engine.job import Job
from switchyard.engine.links.base import Deliver, Link
from switchyard.engine.links.hosts.door import Door
from switchyard.engine.links.hosts.front_end import FrontEnd, greeting
from switchyard.engine.links.hosts.key import Key
from switchyard.engine.links.hosts.shared_job import SharedJob
from switchyard.engine.links.seal import Seals
from switchyard.engine.messages import (
    Abandon,
    Cancel,
    Chunk,
    Command,
    Event,
    Failed,
    Finished,
    Hanging,
    JobEvent,
    JobList,
    ListJobs,
    ListPending,
    PendingList,
    Recovered,
    Recovering,
    ReplicaStates,
    Stop,
    Stopped,
    Submit,
    ThreadEvent,
)
from switchyard.engine.schedule import admission
from switchyard.engine.schedule.rate import CompletionRate
from switchyard.engine.standing import Standing
from switchyard.engine.stats import Stats

logger = logging.getLogger(__name__)

DRAINS = "the engine accepts no more jobs: it is shutting down"


class Host:
    """Routes each job's events to the front end that submitted it. Limits, fair shares and queue
    positions apply to the jobs of all front ends together.
    """

    def __init__(
        self,
        config: ModelConfig,
        make_link: Callable[[Deliver], Link],
        at: str,
        key: Key,
        fingerprint: str,
    ) -> None:
        """Listens at once, but responds only after `start`. Raises ModelError for an invalid
        address.
        """
        self._config = config
        self._door = Door(
            at, key, fingerprint, self._admit, lambda: self.is_loaded and not self._is_draining
        )
        self._inbox: queue.SimpleQueue[Sequence[Event]] = queue.SimpleQueue()
        self._link = make_link(self._inbox.put)
        self._changed = threading.Condition()  # guards the attributes below; notified of ended jobs
        self._front_ends: set[FrontEnd] = set()
        self._jobs: dict[str, SharedJob] = {}
        self._again: dict[str, tuple[FrontEnd, Submit]] = {}  # resubmitted jobs
        self._questions: dict[int, tuple[FrontEnd, ListPending | ListJobs]] = {}
        self._serials = itertools.count(1)
        self._standing = Standing(config.name)
        self._rate = CompletionRate()
        self._backlog = Backlog()
        self._stats: Stats | None = None
        self._began = time.time()
        self._is_draining = False
        self._router = threading.Thread(target=self._route, name="route", daemon=True)

    # Any thread

    @property
    def error(self) -> EngineError | None:
        """Why the engine has ended, or None after `close`."""
        return self._standing.error

    @property
    def is_loaded(self) -> bool:
        """Whether the model was ever loaded."""
        return self._standing.info is not None

    @property
    def num_jobs(self) -> int:
        return len(self._jobs)

    @property
    def num_wanted(self) -> int:
        """The number of jobs that wait in servers, and that any engine of the model may take."""
        return self._stats.num_wanted if self._stats else 0

    def start(self) -> None:
        self._standing.begin_load()
        self._link.start()
        self._router.start()
        self._door.open()

    def wait(self, timeout: float | None = None) -> bool:
        """Returns whether the engine has ended within `timeout` seconds, because of either `close`
        or an `error`.
        """
        self._router.join(timeout)
        return not self._router.is_alive()

    def close(self, drain: float = 0.0, timeout: float | None = None) -> bool:
        """Refuse new jobs, and end when the running jobs have ended, but after `drain` seconds at
        the latest. Servers move unstarted jobs to another engine, or keep them until an engine is
        available again. Returns whether everything was released within `timeout` more seconds.
        """
        with self._changed:
            self._is_draining = True
            self._tell_all([Recovering(DRAINS)])
            self._changed.wait_for(lambda: not self._jobs, drain)
            self._forget_jobs()  # front ends notice the connection's end
        self._door.close()
        self._link.send(Stop())
        return self.wait(timeout) and self._link.join(timeout)

    # Thread of a handshake

    def _admit(self, connection: socket.socket, seals: Seals | None, pid: int) -> None:
        front_end = FrontEnd(
            connection, seals, pid, self._config.silence_timeout, self._take, self._leave
        )
        logger.info("server %d has connected", pid)
        with self._changed:
            self._front_ends.add(front_end)
            drains = DRAINS if self._is_draining else None
            front_end.tell(greeting(self._standing, self._stats, drains))
            if self._standing.is_stopped:
                front_end.end()
            front_end.start()

    # Thread of a front end

    def _take(self, front_end: FrontEnd, command: Command) -> None:
        job = command.job if isinstance(command, Submit) else None
        if job and job.identifier not in self._jobs and not self._has_room(front_end, job):
            return  # without the lock, so that events don't wait for it
        with self._changed:
            match command:
                case Submit(job, age):
                    submit = Submit(job, time.monotonic() - age)
                    if job.identifier in self._jobs:  # resubmitted over a new connection
                        self._again[job.identifier] = (front_end, submit)
                        self._link.send(Cancel(job.identifier))
                    else:
                        self._submit(front_end, submit)
                case Cancel(identifier):
                    if again := self._again.pop(identifier, None):
                        _, submit = again
                        end = Finished(identifier, "cancelled", len(submit.job.prompt), 0, 0)
                        front_end.tell([end])
                    self._link.send(command)
                case ListPending() | ListJobs():
                    serial = next(self._serials)
                    self._questions[serial] = (front_end, command)
                    self._link.send(ListPending(serial))
                case Abandon() | Stop():
                    pass  # front ends may not send these

    def _has_room(self, front_end: FrontEnd, job: Job) -> bool:
        """Refuse the job if there is no room. Returns whether there is room. Needs no lock."""
        now, num_tokens = time.monotonic(), job.num_prompt_tokens
        refusal = admission.refusal(
            self._standing, self._backlog, self._rate, self._config, now, 1, num_tokens
        )
        if refusal is not None:
            front_end.tell([Failed(job.identifier, refusal)])
        return refusal is None

    def _leave(self, front_end: FrontEnd) -> None:
        with self._changed:
            self._front_ends.discard(front_end)
            for one in self._jobs.values():
                if one.front_end is front_end:
                    one.front_end = None
                    self._link.send(Cancel(one.job.identifier))
            self._again = {i: one for i, one in self._again.items() if one[0] is not front_end}

    # Router's thread

    def _route(self) -> None:
        while not self._standing.is_stopped:
            events = self._inbox.get()
            with self._changed:
                self._pass_on(events)
        with self._changed:
            front_ends = list(self._front_ends)
        for one in front_ends:
            one.end()
        for one in front_ends:
            one.join(self._config.silence_timeout)

    # Inside, under the lock

    def _pass_on(self, events: Sequence[Event]) -> None:
        parts: dict[FrontEnd, list[Event]] = {}
        for event in events:
            if not isinstance(event, Chunk) and isinstance(event, ThreadEvent):
                for one, part in parts.items():
                    one.tell(part)
                parts = {}
                self._note(event)
            elif (job := self._jobs.get(event.identifier)) is not None:
                before = job.state
                job.note(event)
                if job.state != before:
                    self._backlog = self._backlog.moved(job.job, before, job.state)
                if isinstance(event, Finished | Failed):
                    self._end(event)
                if job.front_end is not None:
                    parts.setdefault(job.front_end, []).append(event)
        for one, part in parts.items():
            one.tell(part)

    def _end(self, event: JobEvent) -> None:
        ended = self._jobs.pop(event.identifier)
        self._backlog = self._backlog.moved(ended.job, ended.state, None)
        self._rate.note(time.monotonic())
        if again := self._again.pop(event.identifier, None):
            self._submit(*again)
        self._changed.notify_all()

    def _submit(self, front_end: FrontEnd, submit: Submit) -> None:
        job, now = submit.job, time.monotonic()
        if not self._has_room(front_end, job):
            return
        if not self._jobs:
            self._rate.resume(now)
        self._backlog = self._backlog.moved(job, None, "pending")
        self._jobs[job.identifier] = SharedJob(job, submit.time, front_end)
        self._link.send(submit)

    def _forget_jobs(self) -> None:
        self._jobs.clear()
        self._backlog = Backlog()

    def _note(self, event: ThreadEvent) -> None:
        """Process an event that concerns the engine thread itself."""
        if isinstance(event, PendingList):
            return self._answer(event)
        before = self._standing.state
        self._standing.note(event)
        match event:
            case Stats():
                wanted = sum(one.num_waiting for one in self._front_ends)
                self._stats = event = replace(event, began=self._began, num_wanted=wanted)
                self._tell_all([event])
            case ReplicaStates():
                self._tell_trouble(before)
            case Recovered() if self._is_draining:
                pass
            case Hanging():  # the front ends end these jobs, or move them
                self._link.send(Abandon())
                self._forget_jobs()
                self._again.clear()
                self._tell_all([event])
            case Stopped():
                self._forget_jobs()
                self._changed.notify_all()
                self._tell_all([event])
            case _:
                self._tell_all([event])

    def _tell_trouble(self, before: admission.State) -> None:
        """Report a change in the replicas' common state. While all replicas hang, jobs keep waiting
        here.
        """
        state = self._standing.state
        if state != before and not self._is_draining:
            trouble = Recovering(str(self._standing.error))
            self._tell_all([Recovered() if state == "ready" else trouble])

    def _tell_all(self, events: Sequence[Event]) -> None:
        for one in self._front_ends:
            one.tell(events)

    def _answer(self, answer: PendingList) -> None:
        front_end, question = self._questions.pop(answer.serial)
        if isinstance(question, ListPending):
            front_end.tell([PendingList(question.serial, answer.identifiers)])
            return
        places = {identifier: i for i, identifier in enumerate(answer.identifiers, 1)}
        info, now = self._standing.info, time.monotonic()
        jobs = tuple(one.tell(places.get(i), info, now) for i, one in self._jobs.items())
        front_end.tell([JobList(question.serial, jobs)])
