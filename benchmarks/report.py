"""The header of a result: machine, commit, command."""

import os
import pathlib
import platform
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent


def header():
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=10"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    cpu = platform.processor() or platform.machine()
    info = pathlib.Path("/proc/cpuinfo")
    if info.exists():
        names = [s.partition(":")[2] for s in info.read_text().splitlines() if "model name" in s]
        cpu = names[0].strip() if names else cpu
    print(f"# {os.cpu_count()} cores of {cpu}, Python {platform.python_version()}; commit {commit}")
    print(
        f"# {' '.join(['python', os.path.relpath(sys.argv[0], ROOT), *sys.argv[1:]])}", flush=True
    )
