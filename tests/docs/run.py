"""Run every fenced block of the documentation in a fresh clone: scripts/test-docs."""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator

from tests.docs.marks import Way, way_of
from tests.docs.pages import ROOT, Block, blocks, pages
from tests.docs.processes import Clone, Failure, Server, free_port, run

ADDRESS_OF_BIND = re.compile(r"SWITCHYARD_BIND=(127\.0\.0\.1:\d+)")
ADDRESS = re.compile(r"127\.0\.0\.1:(8\d{3})")
SERVES = re.compile(r"(scripts/serve|switchyard serve|python -m switchyard)\b(?!.* estimate)")
HOST = """import flask, jinja2
from switchyard import Switchyard, engine
app = flask.Flask(__name__)
app.jinja_loader = jinja2.DictLoader({"summary.html": "{{ text }}"})
"""
HOST_FIXTURE = """
import pytest
@pytest.fixture(name="app")
def fixture_app():
    return app
"""
READ_SETTINGS = "from switchyard.app import read_settings; read_settings().served()"
READ_KEYS = "import sys; from switchyard.app.operations.keys import read_keys; "
READ_KEYS += "read_keys(sys.argv[1], 0, True)"


class Page:
    """Blocks of one page, in their order, with its own directory and servers."""

    def __init__(self, clone: Clone, place: pathlib.Path, main_port: int) -> None:
        self._clone = clone
        self._directory = place
        self._ports = {"8000": main_port}
        self._servers: list[Server] = []
        self._key = ""
        self._host = HOST

    def run(self, block: Block, way: Way) -> None:
        text = block.text
        for old, new in way.changes:
            new = new.replace("DIR", str(self._directory)).replace("ROOT", str(self._clone.root))
            text = text.replace(old, new)
        if self._key:
            text = text.replace("sk-sy-…", self._key)
        match way.kind:
            case "json":
                self._parse(text)
            case "toml":
                tomllib.loads(text)
            case "settings" | "settings here":
                self._read_settings(text, way.kind == "settings here")
            case "keys":
                path = self._directory / "some-keys.toml"
                path.write_text(text)
                path.chmod(0o600)
                self._python("-c", READ_KEYS, str(path))
            case "host":
                self._host += text
                self._run_module("host.py", self._host)
            case "host alone":
                self._run_module("alone.py", HOST + text)
            case "host test":
                path = self._directory / "test_host.py"
                path.write_text(f"{self._host}{HOST_FIXTURE}{text}")
                plugins = ["-p", "no:cacheprovider", "-p", "switchyard.testing.pytest_plugin"]
                self._python("-m", "pytest", "-q", *plugins, str(path))
            case "python":
                self._run_module("block.py", text)
            case "sh" | "here":
                cwd = self._clone.root if way.kind == "sh" else self._directory
                told = self._sh(text, cwd)
                if key := re.search(r"sk-sy-\S{43}", told):
                    self._key = key[0]
            case _:
                self._serve(text, way.kind or "")

    def close(self) -> None:
        """Raises Failure."""
        for server in reversed(self._servers):
            server.stop()

    def _parse(self, text: str) -> None:
        try:
            json.loads(text)
        except ValueError:
            for line in text.splitlines():
                json.loads(line)

    def _read_settings(self, text: str, is_kept: bool) -> None:
        path = self._directory / ("switchyard.toml" if is_kept else "other.toml")
        if is_kept and path.exists():
            new = tomllib.loads(text).keys()
            before = path.read_text().splitlines()
            text += "\n".join(line for line in before if line.split(" ")[0] not in new)
        path.write_text(text)
        environment = {**self._environment(), "SWITCHYARD_CONFIG": str(path)}
        run([str(self._clone.python), "-c", READ_SETTINGS], self._directory, environment)

    def _serve(self, text: str, kind: str) -> None:
        text, port = self._with_ports(text, "8000" if "here" in kind else None)
        if kind == "background":
            self._servers.append(Server(text, self._directory, self._environment()))
            return
        stays = kind == "server here"
        cwd = self._directory if stays else self._clone.root
        environment = self._environment() | {"SWITCHYARD_BIND": f"127.0.0.1:{port}"}
        environment["GUNICORN_CMD_ARGS"] = f"--bind 127.0.0.1:{port}" if kind == "app" else ""
        lines = [text] if kind == "app" else text.splitlines()
        before = ""
        for line in lines:
            if kind != "app" and not SERVES.search(line):
                before += f"{line}\n"
                continue
            own = ADDRESS_OF_BIND.search(line)
            server = Server(f"{before}{line}", cwd, environment)
            address = own[1] if own else f"127.0.0.1:{port}"
            path = "/" if kind == "app" else "/health/ready"
            try:
                server.wait_until_answers(f"http://{address}{path}", kind == "app")
            finally:
                if stays:
                    self._servers.append(server)
                else:
                    server.stop()

    def _with_ports(self, text: str, own: str | None = None) -> tuple[str, int]:
        """With free ports in place of those of 8000 and above; the one for a server."""
        port = free_port()
        if own:
            self._ports[own] = port
        for name in {*ADDRESS.findall(text)} - {*self._ports}:
            self._ports[name] = free_port()
        return ADDRESS.sub(lambda found: f"127.0.0.1:{self._ports[found[1]]}", text), port

    def _sh(self, text: str, cwd: pathlib.Path) -> str:
        text, _ = self._with_ports(text)
        return run(["sh", "-euc", text], cwd, self._environment())

    def _run_module(self, name: str, text: str) -> None:
        text, _ = self._with_ports(text)
        path = self._directory / name
        path.write_text(text)
        self._python(str(path))

    def _python(self, *arguments: str) -> None:
        run([str(self._clone.python), *arguments], self._directory, self._environment())

    def _environment(self) -> dict[str, str]:
        own = {"SWITCHYARD_KEY": self._key} if self._key else {}
        return {**self._clone.environment, **own}


def run_all(chosen: list[str], place: pathlib.Path) -> Iterator[str]:
    """What has failed. Prints what becomes of each block."""
    clone = Clone(place)
    port = free_port()
    environment = {**clone.environment, "SWITCHYARD_BIND": f"127.0.0.1:{port}"}
    main = Server("exec scripts/serve", clone.root, environment)
    try:
        main.wait_until_answers(f"http://127.0.0.1:{port}/health/ready")
        for number, name in enumerate(chosen):
            own = place / f"page-{number}"
            own.mkdir()
            page = Page(clone, own, port)
            for block in blocks(name):
                yield from run_one(page, block)
            try:
                page.close()
            except Failure as failure:
                yield f"{name}: {failure}"
    finally:
        main.stop()


def run_one(page: Page, block: Block) -> Iterator[str]:
    where, way = f"{block.page}:{block.line}", way_of(block)
    if way.kind == "text":
        return
    if way.kind is None:
        print(f"{where}: not run: {way.reason}", flush=True)
        return
    begun = time.monotonic()
    try:
        page.run(block, way)
    except (Failure, ValueError) as failure:
        print(f"{where}: FAILED: {failure}", flush=True)
        yield where
    else:
        print(f"{where}: {way.kind}, {time.monotonic() - begun:.1f} s", flush=True)


def main() -> int:
    chosen = sys.argv[1:] or pages()
    if subprocess.run(["git", "diff", "--quiet", "HEAD"], cwd=ROOT).returncode:
        print("switchyard: what is not committed is not in the clone", file=sys.stderr)
    place = pathlib.Path(tempfile.mkdtemp(prefix="switchyard-docs-"))
    try:
        failed = list(run_all(chosen, place))
    finally:
        shutil.rmtree(place, ignore_errors=True)
    print(f"{len(failed)} blocks failed: {', '.join(failed)}" if failed else "all blocks are good")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
