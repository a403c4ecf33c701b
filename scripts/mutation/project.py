"""The project whose code is changed, with its files and revision, and copies in which tests run."""

import collections
import contextlib
import dataclasses
import hashlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

CODE = ("app", "engine", "switchyard")
LINKED = (  # large, and the same for each copy
    ".venv",
    "tests/node/node_modules",
    "tests/tokenizers/node_modules",
)
TOOL = pathlib.Path(__file__).resolve().parents[2]
PYTEST = (  # as `python -m pytest`, with this tool's plugin
    "import os, sys, pytest\nsys.path[0] = os.getcwd()\n"
    f"sys.path.append({str(TOOL)!r})\nsys.exit(pytest.main())"
)
PYTEST_COMMAND = ["-c", PYTEST, "-p", "scripts.mutation.plugin", "-p", "no:cacheprovider"]


def git(root: pathlib.Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def files(root: pathlib.Path, *patterns: str) -> list[str]:
    """Tracked and new files, without links."""
    names = git(root, "ls-files", "-co", "--exclude-standard", "--", *patterns).splitlines()
    return sorted(n for n in {*names} if (root / n).is_file() and not (root / n).is_symlink())


def sources(root: pathlib.Path) -> dict[str, bytes]:
    """The code of each file, by its path from `root`."""
    names = files(root, *(f"{folder}/*.py" for folder in CODE))
    return {name: (root / name).read_bytes() for name in names}


def tests(root: pathlib.Path) -> list[str]:
    return [n for n in files(root, "tests/*.py") if n.rpartition("/")[2].startswith("test_")]


def revision(root: pathlib.Path) -> str:
    """The commit, and a hash of the code and tests that differ from it."""
    folders = (*CODE, "tests")
    commit = git(root, "rev-parse", "--short=10", "HEAD").strip()
    if not git(root, "status", "--porcelain", "--", *folders):
        return commit
    digest = hashlib.sha256(git(root, "diff", "HEAD", "--", *folders).encode())
    for name in git(root, "ls-files", "-o", "--exclude-standard", "--", *folders).splitlines():
        digest.update(name.encode() + (root / name).read_bytes())
    return f"{commit}-{digest.hexdigest()[:6]}"


def changed(root: pathlib.Path, since: str) -> dict[str, set[int]]:
    """The lines of code that differ from the revision `since`, including all lines in new files."""
    found: dict[str, set[int]] = collections.defaultdict(set)
    name = ""
    for line in git(root, "diff", "-U0", "--no-renames", since, "--", *CODE).splitlines():
        if line.startswith("+++ "):
            name = line.removeprefix("+++ b/")
        elif match := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            start, number = int(match[1]), int(match[2] or 1)
            found[name].update(range(start, start + number))
    for name in git(root, "ls-files", "-o", "--exclude-standard", "--", *CODE).splitlines():
        found[name].update(range(1, len((root / name).read_bytes().splitlines()) + 1))
    return found


@dataclasses.dataclass
class Ended:
    status: int | None  # None if it was stopped
    output: str


class Copy:
    """A copy of the project on disk. One thread uses it at a time."""

    def __init__(self, root: pathlib.Path, path: pathlib.Path) -> None:
        self.path = path
        self._mtime = 0
        for name in git(root, "ls-files", "-co", "--exclude-standard").splitlines():
            if (root / name).is_file() or (root / name).is_symlink():
                (path / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(root / name, path / name, follow_symlinks=False)
        if (root / ".mypy_cache").exists():
            shutil.copytree(root / ".mypy_cache", path / ".mypy_cache")
        for name in LINKED:
            if (root / name).exists():
                (path / name).unlink(missing_ok=True)
                (path / name).parent.mkdir(parents=True, exist_ok=True)
                (path / name).symlink_to((root / name).resolve())
        git(path, "init", "-q")  # some tests ask git which files there are
        git(path, "add", "-A")

    @contextlib.contextmanager
    def planted(self, name: str, changed: bytes) -> Iterator[None]:
        """Replaces the content of a file inside the `with` block."""
        before = (self.path / name).read_bytes()
        self._write(name, changed)
        try:
            yield
        finally:
            self._write(name, before)

    def _write(self, name: str, content: bytes) -> None:
        (self.path / name).write_bytes(content)
        # Python compares only the source's size and whole seconds with those of a compiled file.
        self._mtime = max(self._mtime, int((self.path / name).stat().st_mtime)) + 2
        os.utime(self.path / name, (self._mtime, self._mtime))

    def run(self, *arguments: str, hangs: Callable[[], bool], **environment: str) -> Ended:
        """Runs Python in the copy until it ends, or until `hangs`, which is called twice a second,
        returns True.
        """
        # As in scripts/test: with PYTHONDONTWRITEBYTECODE, each server would compile its imports.
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("COV", "MUTATE_", "PYTEST_", "PYTHONDONTWRITEBYTECODE"))
        }
        output = self.path.with_name(f"{self.path.name}.output")
        with output.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=self.path,
                env=inherited | environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status = _wait(process, hangs)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # including its children
                process.wait()
        return Ended(status, output.read_text(errors="replace"))


def _wait(process: subprocess.Popen[bytes], hangs: Callable[[], bool]) -> int | None:
    while not hangs():
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(0.5)
    return None
