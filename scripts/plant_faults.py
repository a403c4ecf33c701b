"""Plants the faults of tests/faults.toml, one at a time in a copy of the project, and runs the
tests: first those that the list names, or that import the changed module, then the rest, until one
fails. Prints what survived.

Exit status 1 if a fault survived that the list doesn't call equivalent, or has no place any more.
"""

import argparse
import ast
import pathlib
import shutil
import subprocess
import sys
import tempfile
import tomllib
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIST = ROOT / "tests" / "faults.toml"
TIMEOUT = 1200  # seconds of tests for one fault; a hang counts as noticed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changed", metavar="REVISION", nargs="?", const="HEAD~1")
    parser.add_argument("--only", default="", help="faults whose name or file has this text in it")
    parser.add_argument("--jobs", type=int, default=2, help="test files at a time")
    parser.add_argument("--places", action="store_true", help="which have none; runs no test")
    args = parser.parse_args()
    faults = tomllib.loads(LIST.read_text())["faults"]
    faults = [f for f in faults if args.only in f["name"] or args.only in f["file"]]
    if args.changed:
        git = ["git", "-C", str(ROOT), "diff", "--name-only", args.changed]
        changed = subprocess.run(git, capture_output=True, text=True, check=True).stdout.split()
        faults = [fault for fault in faults if fault["file"] in changed]
    if args.places:
        return tell_places(faults)
    survivors = []
    with tempfile.TemporaryDirectory() as directory:
        copy = copy_project(pathlib.Path(directory))
        for fault in faults:
            result = try_fault(copy, fault, args.jobs)
            print(f"{result:9} {fault['name']} ({fault['file']})", flush=True)
            if result != "noticed":
                survivors.append((result, fault))
    print(f"\n{len(faults) - len(survivors)} of {len(faults)} noticed")
    for result, fault in survivors:
        print(f"{result}: {fault['name']}: {fault['notice']}")
        if "equivalent" in fault:
            print(f"    equivalent: {fault['equivalent']}")
    return any(result == "no place" or "equivalent" not in f for result, f in survivors)


def tell_places(faults: list[dict[str, Any]]) -> int:
    lost = [fault for fault in faults if plant(ROOT, fault) is None]
    for fault in lost:
        print(f"no place  {fault['name']} ({fault['file']})")
    print(f"\n{len(faults) - len(lost)} of {len(faults)} have a place")
    return bool(lost)


def plant(copy: pathlib.Path, fault: dict[str, Any]) -> str | None:
    """The file's text with the fault; None without its place, or if the result isn't Python."""
    path = copy / fault["file"]
    text = path.read_text() if path.exists() else ""
    if text.count(fault["before"]) != 1:
        return None
    text = text.replace(fault["before"], fault["after"])
    if path.suffix == ".py":
        try:
            ast.parse(text)
        except SyntaxError:
            return None
    return text


def copy_project(directory: pathlib.Path) -> pathlib.Path:
    git = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard"]
    names = subprocess.run(git, capture_output=True, text=True, check=True).stdout.splitlines()
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, directory / name, follow_symlinks=False)
    for name in (".venv", "tests/node/node_modules"):
        (directory / name).symlink_to(ROOT / name)
    return directory


def try_fault(copy: pathlib.Path, fault: dict[str, Any], jobs: int) -> str:
    faulty = plant(copy, fault)
    if faulty is None:
        return "no place"
    path = copy / fault["file"]
    text = path.read_text()
    path.write_text(faulty)
    try:
        first = fault.get("tests", importers(copy, fault["file"]))
        others = [name for name in test_files(copy) if name not in first]
        for names in (first, others):
            if names and not passes(copy, names, jobs):
                return "noticed"
        return "survived"
    finally:
        path.write_text(text)


def passes(copy: pathlib.Path, names: list[str], jobs: int) -> bool:
    pytest = [str(copy / ".venv/bin/python"), "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    command = [*pytest, "-n", str(jobs), "--dist", "loadfile", *names]
    try:
        done = subprocess.run(command, cwd=copy, capture_output=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def test_files(copy: pathlib.Path) -> list[str]:
    return sorted(
        path.relative_to(copy).as_posix()
        for path in (copy / "tests").rglob("test_*.py")
        if "node_modules" not in path.parts
    )


def importers(copy: pathlib.Path, name: str) -> list[str]:
    """Test files that import the module directly."""
    module = "switchyard." + name.removeprefix("switchyard/").removesuffix(".py").replace("/", ".")
    return [test for test in test_files(copy) if module in set(imports(copy / test))]


def imports(path: pathlib.Path) -> list[str]:
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


if __name__ == "__main__":
    sys.exit(main())
