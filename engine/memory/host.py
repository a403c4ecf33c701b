"""The host memory that is left for this process, as Linux's system files report it."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("sys/fs/cgroup")
# Files with the limit and the use, and the entries of `memory.stat` with reclaimable file pages.
V2 = ("memory.max", "memory.current", ("inactive_file", "active_file"))
V1 = (
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ("total_inactive_file", "total_active_file"),
)


def free_memory(root: Path = Path("/")) -> int:
    """The free bytes: the kernel's available memory or, if less, what a control group leaves.
    Returns a very large number if no file has these figures. `root`: the folder with `proc` and
    `sys`.
    """
    return max(min([*_available(root), *_left(root)], default=sys.maxsize), 0)


def _available(root: Path) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                yield int(line.split()[1]) * 1024


def _left(root: Path) -> Iterator[int]:
    """The bytes that each control group leaves for this process."""
    groups: list[str] = []
    with contextlib.suppress(OSError):
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    for group in groups:
        _, controllers, path = group.split(":", 2)
        if not controllers:
            mount, names = root / CGROUPS, V2
        elif "memory" in controllers.split(","):
            mount, names = root / CGROUPS / "memory", V1
        else:
            continue
        own = Path(path.strip("/"))
        # A container may not see the upper groups, or may see its own as the root.
        for folder in (own, *own.parents):
            with contextlib.suppress(OSError, ValueError):  # "max" is not a number
                yield _left_in(mount / folder, *names)


def _left_in(group: Path, limit: str, usage: str, of_files: tuple[str, ...]) -> int:
    most = int((group / limit).read_text())
    stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    files = sum(int(stat.get(name, 0)) for name in of_files)
    return most - int((group / usage).read_text()) + files
