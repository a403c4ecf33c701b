#!/usr/bin/env python3
"""What do clients notice of a cluster that fails, is updated or scaled? How soon is it whole again?

    sudo python benchmarks/cluster.py [--rows engine,frozen]

Three machines are network namespaces: the head with a server, and two with engines, by Ray. Every
token of each stream is checked. Needs root and what scripts/test-cluster installs, and runs in that
environment. `told`: seconds from the failure to the last error. `again`: until two engines are
ready, none of them the one that failed. Then seconds until the first text of a stream, and the
machine's load, its own included. A line for each row of the table of failures in docs/cluster.md,
and for memory.
"""

import argparse
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.report import header  # noqa: E402
from tests.cluster.field import HEAD, Field  # noqa: E402
from tests.cluster.machines import MODEL  # noqa: E402
from tests.cluster.test_engine_process import is_there  # noqa: E402


class Row:
    """What one failure did to the streams beside it."""

    def __init__(self, field):
        self._field = field
        self.whole_again = self.began = None

    def fail(self, act, number=2, without=()):
        self.began = time.time()
        act()
        self._field.wait_for_engines(number, without)
        self.whole_again = time.time() - self.began

    def line(self, name, *results):
        """`results`: of the streams that ran."""
        counts = [sum(one[kind] for one in results) for kind in ("whole", "lost", "wrong")]
        ends = [one["last_lost"] for one in results if one["last_lost"]]
        told = f"{max(ends) - self.began:6.2f}" if ends else "     -"
        again = f"{self.whole_again:6.1f}" if self.whole_again is not None else "     -"
        first = [
            f"{max(one[f'first_text_{what}'] or 0.0 for one in results):6.2f}"
            for what in ("p50", "p99", "max")
        ]
        numbers = "".join(f"{count:6}" for count in counts)
        print(
            f"{name:30}{numbers}  {told}  {again}    {' '.join(first)}  {os.getloadavg()[0]:5.1f}",
            flush=True,
        )
        return counts


def nothing(field, row):
    with field.load(160, 300, 25.0) as result:
        pass
    return [result]


def engine(field, row):
    with field.load() as result:
        pid, *_ = field.an_engine()
        row.fail(lambda: field.kill(pid), 2, [pid])
    return [result]


def supervisor(field, row):
    with field.load() as result:
        pid, *_ = field.an_engine()
        row.fail(lambda: field.kill(field.supervisor_of(pid)), 2, [pid])
    return [result]


def frozen(field, row):
    with field.load() as result:
        pid, *_ = field.an_engine()
        row.fail(lambda: field.kill(pid, signal.SIGSTOP), 2, [pid])
    return [result]


def machine(field, row):
    with field.load(260, 200) as result:
        pid, number, _ = field.an_engine()
        row.fail(lambda: field.machines.kill_all(number), 2, [pid])
    field.start_node(number)
    field.wait_for_nodes(3)
    return [result]


def cut(field, row):
    with field.load(60, 300) as result:
        pid, number, _ = field.an_engine()
        row.fail(lambda: field.machines.cut(number), 2, [pid])
    with field.load(40, 100) as during:
        pass
    field.machines.cut(number, False)
    field.wait_for_nodes(3)
    with field.load(40, 100) as after:
        pass
    return [result, during, after]


def head(field, row):
    with field.load(120, 300, 12.0) as result:
        row.fail(field.kill_state)
    field.wait_for_nodes(3)
    row.whole_again = time.time() - row.began
    return [result]


def follower(field, row):
    with field.load(60, 200) as result:
        row.began = time.time()
        for number in (1, 2, 3):
            for pid in field.machines.pids(number, "switchyard.cluster.follower"):
                field.kill(pid)
    return [result]


def update(field, row):
    before = [one[1] for one in field.engines()]
    with field.load(160, 300, 25.0) as result:
        row.fail(lambda: apply(field, 2, "max_priority = 3"), 2, before)
    return [result]


def up(field, row):
    with field.load(160, 300, 10.0) as result:
        row.fail(lambda: apply(field, 3, "max_priority = 3"), 3)
    return [result]


def down(field, row):
    with field.load(160, 300, 10.0) as result:
        row.fail(lambda: apply(field, 2, "max_priority = 3"), 2)
    return [result]


def apply(field, engines, more):
    field.machines.settings(engines, more=more)
    field.apply()


def drain(field, row):
    with field.load(160, 300, 25.0) as result:
        _, number, _ = field.an_engine()
        gone = [one[1] for one in field.on(number)]
        row.fail(lambda: field.machines.run(number, "cluster", "node", "--drain"), 2, gone)
    field.stop_node(number)
    field.start_node(number)
    field.wait_for_nodes(3)
    return [result]


def gone(field, row):
    """The streams begin once there is no engine."""
    before = [one[1] for one in field.engines()]
    row.began = time.time()
    for pid in before:
        field.kill(pid)
    while any(map(is_there, before)):
        time.sleep(0.05)
    with field.load(60, 100) as result:
        field.wait_for_engines(2, before)
        row.whole_again = time.time() - row.began
    return [result]


def empty(field, row):
    """The follower is frozen meanwhile: it would write the list again."""
    followers = field.machines.pids(1, "switchyard.cluster.follower")
    for pid in followers:
        field.kill(pid, signal.SIGSTOP)
    with field.load(60, 200) as result:
        row.began = time.time()
        (field.machines.folder(1) / "run" / f"{MODEL}.at").write_text("")
    with field.load(40, 100) as after:
        pass
    for pid in followers:
        field.kill(pid, signal.SIGCONT)
    return [result, after]


def server(field, row):
    with field.load(60, 300) as result:
        row.began = time.time()
        for pid in field.server_pids():
            field.kill(pid)
    field.start_server()
    field.wait_for_engines(2)
    with field.load(40, 100) as after:
        pass
    return [result, after]


def head_command(field, row):
    with field.load(120, 300, 12.0) as result:
        row.began = time.time()
        [pid] = field.machines.pids(1, HEAD)
        field.kill(pid)
        field.start_head("--engines", "1")
        field.wait_for_nodes(3)
        row.whole_again = time.time() - row.began
    return [result]


def head_with_engine(field, row):
    """Goes on with the head of the row before."""
    apply(field, 5, "max_priority = 3")
    field.wait_for_engines(5)
    [own] = [one[1] for one in field.on(1)]
    with field.load(100, 300) as result:
        row.fail(field.kill_state, 5, [own])
    apply(field, 2, "max_priority = 3")
    field.wait_for_engines(2)
    return [result]


ROWS = {
    "nothing": ("nothing fails", nothing),
    "engine": ("kill -9 of an engine", engine),
    "supervisor": ("kill -9 of a supervisor", supervisor),
    "frozen": ("an engine frozen", frozen),
    "machine": ("a machine's plug pulled", machine),
    "cut": ("a machine's cable cut", cut),
    "head": ("the head's state killed", head),
    "follower": ("all followers killed", follower),
    "update": ("rolling update", update),
    "up": ("2 to 3 engines", up),
    "down": ("3 to 2 engines", down),
    "drain": ("a machine drained", drain),
    "gone": ("all engines killed, before", gone),
    "empty": ("the server's source emptied", empty),
    "server": ("the server killed", server),
    "command": ("kill -9 of `cluster head`", head_command),
    "engine_of_head": ("the head, with an engine", head_with_engine),
}


def memory(field):
    """MB that the processes of a machine hold alone, without its server and engines."""
    for number, name in ((1, "the head"), (2, "another machine")):
        total = 0
        for pid in field.machines.pids(number):
            line = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
            if not line or line.endswith(b"switchyard\0") or b"--name" in line:
                continue  # the server, an engine
            rollup = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
            [pss] = [row.split()[1] for row in rollup.splitlines() if row.startswith("Pss:")]
            total += int(pss)
        print(f"memory of {name}, proportional: {total / 1024:.0f} MB")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default=",".join(ROWS))
    arguments = parser.parse_args()
    header()
    root = tempfile.mkdtemp(prefix="swy-", dir="/tmp")  # short, for Ray's Unix sockets
    field = Field(root)
    totals = [0, 0, 0]
    try:
        began = time.time()
        field.start()
        print(f"three machines, two engines and a server: up in {time.time() - began:.1f} s")
        memory(field)
        print(f"{'':30} whole  lost wrong    told   again       p50    p99    max   load")
        for name in arguments.rows.split(","):
            title, run = ROWS[name]
            row = Row(field)
            counts = row.line(title, *run(field, row))
            totals = [a + b for a, b in zip(totals, counts, strict=True)]
        print(f"in all: {totals[0]} whole, {totals[1]} lost, {totals[2]} wrong")
    finally:
        field.close()
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
