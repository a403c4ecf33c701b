"""Checks all of the project's prose, or only the given files. Prints each finding with its
location, and returns 1 if there are any.
"""

import pathlib
import subprocess
import sys
from collections.abc import Iterator

from proselint.checks import __register__ as checks_of_proselint
from proselint.config import Config
from proselint.registry import CheckRegistry
from proselint.tools import LintFile

from scripts.prose import style, texts

ROOT = pathlib.Path(__file__).parent.parent.parent
FILES = ["*.md", "app/*.py", "app/ui/*.js", "engine/*.py", "scripts/*.py", "switchyard/*.py"]
STYLE = pathlib.Path(style.__file__)  # contains the phrases that it looks for
READERS = {".md": texts.of_page, ".py": texts.of_python, ".js": texts.of_script}
THEIRS = ["cliches", "malapropisms", "misc", "nonwords", "redundancy"]


def files() -> list[pathlib.Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *FILES]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [ROOT / name for name in found.stdout.splitlines()]
    return [path for path in paths if path.is_file() and path != STYLE]


def findings(path: pathlib.Path) -> Iterator[str]:
    text = READERS[path.suffix](path.read_text())
    is_page = path.suffix == ".md"
    checks = {"switchyard.long": is_page, "switchyard": True, **dict.fromkeys(THEIRS, True)}
    for found in LintFile(str(path), text).lint(Config(max_errors=1000, checks=checks)):
        yield f"{path}:{found.pos[0]}: {' '.join(found.check_result.message.split())}"


def main() -> int:
    CheckRegistry().register_many((*style.CHECKS, *checks_of_proselint))
    paths = [pathlib.Path(name) for name in sys.argv[1:]] or files()
    found = [finding for path in paths for finding in findings(path)]
    print("\n".join(found), end="\n" * bool(found))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
