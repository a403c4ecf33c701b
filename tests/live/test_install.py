"""Installed from a wheel, beside a host application that has our folders' names."""

import importlib.metadata
import json
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import switchyard
from tests.conftest import ROOT
from tests.live.conftest import Server

HOST = """
import flask
from switchyard import Switchyard


def create_app():
    host = flask.Flask(__name__)
    Switchyard(host, url_prefix="/llm")
    host.add_url_rule("/", view_func=lambda: "the host's own page")
    return host
"""
# Names that a host has, and that our checkout has, too.
OWN = {"app.py": HOST, "engine.py": "NAME = 'host'\n", "wsgi.py": "from app import create_app\n"}
OWN["wsgi.py"] += "import engine\n\nassert engine.NAME == 'host'\napp = create_app()\n"

# Of a shop that has no model on this machine, and its suite.
SHOP = """
import os
import flask
from switchyard import Switchyard


def create_app():
    shop = flask.Flask(__name__)
    switchyard = Switchyard(shop, url_prefix="/llm", url=os.environ.get("SHOPS_SERVER"))

    @shop.post("/summary")
    def summary():
        return switchyard.generate(prompt=flask.request.form["text"]).text

    @shop.post("/stream")
    def stream():
        return flask.Response(switchyard.stream(prompt=flask.request.form["text"]))

    return shop
"""
SUITE = """
import importlib.util

import pytest
import shop
from switchyard import engine

CHAT = {"messages": [{"role": "user", "content": "the report"}], "stream": True}


@pytest.fixture(params=["", "http://127.0.0.1:1"], ids=["own", "client mode"])
def client(request, monkeypatch, fake_switchyard):
    monkeypatch.setenv("SHOPS_SERVER", request.param)
    app = shop.create_app()
    app.testing = True  # errors are the test's
    fake_switchyard(app, {"the report": "It rained.", "the long one": engine.Full("no", 7.0)})
    return app.test_client()


def test_there_is_no_torch():
    assert not importlib.util.find_spec("torch") and not importlib.util.find_spec("exllamav2")


def test_answers(client):
    assert client.post("/summary", data={"text": "the report"}).text == "It rained."
    assert client.post("/stream", data={"text": "the report"}).text == "It rained."
    assert client.post("/llm/v1/chat/completions", json=CHAT).text.endswith("data: [DONE]\\n\\n")


def test_errors(client):
    with pytest.raises(engine.Full):
        client.post("/summary", data={"text": "the long one"})


def test_a_model_of_its_own_says_what_it_needs():
    app = shop.create_app()
    app.testing = True
    with pytest.raises(engine.ModelError, match="set `url` for client mode, or install"):
        app.test_client().post("/summary", data={"text": "the report"})
"""

CHAT = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 4}
PACKAGES = sysconfig.get_path("purelib")  # of this environment


def copy_checkout(directory):
    """What is built leaves nothing in the checkout itself."""
    ignored = shutil.ignore_patterns(".*", "node_modules", "build", "*.egg-info", "__pycache__")
    return shutil.copytree(ROOT, directory / "source", symlinks=True, ignore=ignored)


def install(directory, *what, behind=PACKAGES):
    """Into a new environment, with our requirements behind it. Its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    [site] = directory.glob("lib/python*/site-packages")
    (site / "requirements.pth").write_text(f"{behind}\n")
    python = str(directory / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--no-index", "--no-build-isolation", *what], check=True)
    return python


def run(program, directory, *arguments):
    return subprocess.run([program, *arguments], cwd=directory, capture_output=True, text=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    directory = tmp_path_factory.mktemp("wheel")
    source = copy_checkout(directory)
    (source / "build" / "lib" / "switchyard").mkdir(parents=True)
    (source / "build" / "lib" / "switchyard" / "deleted.py").write_text("")  # of an older build
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", directory, source], check=True)
    assert not (source / "build").exists() and not list(source.glob("*.egg-info"))
    [path] = directory.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    return install(tmp_path_factory.mktemp("environment"), wheel)


@pytest.fixture
def host(tmp_path):
    for name, content in OWN.items():
        (tmp_path / name).write_text(content)
    return tmp_path


@pytest.fixture
def serve(python, host):
    """Starts a command in the host's directory; returns the server once it is ready."""
    servers = []

    def start(*command, ready):
        command = ["env", "-u", "PYTHONPATH", python, "-m", *command]
        servers.append(Server(command, host, link="thread"))
        return servers[-1].wait_until_answers(ready)

    yield start
    for server in servers:
        assert server.stop() == 0, server.output


def test_the_wheel_has_its_version_and_its_files_and_takes_no_other_name(wheel):
    assert wheel.name.startswith(f"switchyard-{switchyard.__version__}-")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"switchyard"}
    assert "switchyard/deleted.py" not in names
    wanted = ("models/demo/model.safetensors", "models/demo-exl2/output.safetensors")
    wanted += ("server/conf.py", "server/worker.py", "server/wsgi.py", "app/chat/template.py")
    assert {f"switchyard/{name}" for name in wanted} <= names


def test_python_m_switchyard_serves_a_chat(serve):
    answer = serve("switchyard", ready="/health/ready").post("/v1/chat/completions", CHAT)
    assert answer.json()["choices"][0]["message"]["content"], answer.text


@pytest.mark.hardship
def test_the_command_measures_and_drains_the_server_that_it_serves(serve, python, host):
    server = serve("switchyard", "serve", "--set", "name=mine", ready="/health/ready")
    assert server.get("/v1/models").json()["data"][0]["id"] == "mine"
    url = server.url

    command = pathlib.Path(python).with_name("switchyard")
    bench = ("bench", "--streams", "1,3", "--tokens", "5", "--json")
    done = run(command, host, *bench, "--url", url)
    one, three = json.loads(done.stdout)
    assert (done.returncode, one["errors"], three["streams"]) == (0, 0, 3), done.stderr
    assert one["tokens_per_second"] > 0 and three["first_p99_ms"] >= three["first_p50_ms"] > 0
    done = run(command, host, "drain", "--url", url)
    assert (done.returncode, done.stdout) == (0, f"{url} is draining\n"), done.stderr


def test_a_host_with_modules_of_our_names_serves_a_chat(serve):
    command = ("gunicorn", "--threads", "8", "--bind", "127.0.0.1:{port}", "wsgi:app")
    server = serve(*command, ready="/")

    def answered():  # the first request has it load
        answer = server.post("/llm/v1/chat/completions", CHAT)
        return answer.status_code != 503 and answer

    assert server.wait_for(answered).status_code == 200
    assert server.get("/").text == "the host's own page"


def distributions(names):
    """Those, and all that they need, as far as they are here."""
    found = {}
    names = [Requirement(name) for name in names]
    for one in names:
        if one.marker is None or one.marker.evaluate({"extra": ""}):
            key = canonicalize_name(one.name)
            if key not in found:
                found[key] = importlib.metadata.distribution(key)
                names += map(Requirement, found[key].requires or ())
    return found.values()


@pytest.fixture(scope="module")
def without_torch(wheel, tmp_path_factory):
    """A Python that has the wheel, what switchyard[client] needs, and pytest."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = project["dependencies"] + project["optional-dependencies"]["client"]
    packages = tmp_path_factory.mktemp("packages")
    for one in distributions([*listed, "pytest"]):
        for name in {file.parts[0] for file in one.files} - {".."}:
            (packages / name).symlink_to(one.locate_file(name))
    return install(tmp_path_factory.mktemp("environment"), wheel, behind=packages)


def test_a_shops_suite_runs_without_torch_by_the_fixture_of_the_wheel(without_torch, tmp_path):
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "test_shop.py").write_text(SUITE)
    done = run(without_torch, tmp_path, "-m", "pytest", "-q", "-W", "error", "test_shop.py")
    assert done.returncode == 0 and "6 passed" in done.stdout, done.stdout + done.stderr


def test_a_server_without_torch_says_what_it_needs(without_torch, tmp_path):
    done = run(without_torch, tmp_path, "-m", "switchyard", "serve")
    assert done.returncode == 1
    assert done.stderr.endswith("is not installed: a server needs switchyard[server]\n")


FIND = "import importlib.util; print(importlib.util.find_spec('switchyard.engine').origin)"


def test_an_installed_package_beside_a_checkout_is_no_clash(python, host):
    """Who runs in the checkout gets that one; who runs elsewhere the installed one."""
    for directory, is_checkout in ((ROOT, True), (host, False)):
        origin = run(python, directory, "-c", FIND).stdout
        assert origin.endswith("/switchyard/engine/__init__.py\n")
        assert origin.startswith(str(ROOT / "switchyard")) == is_checkout


def test_a_checkout_whose_links_are_files_says_so_in_one_line(tmp_path):
    package = tmp_path / "switchyard"
    package.mkdir()
    shutil.copy(ROOT / "switchyard" / "__init__.py", package)
    for name in ("app", "engine", "models"):
        (package / name).write_text(f"../{name}")  # as git writes a link where it can't make one
    told = run(sys.executable, tmp_path, "-c", "import switchyard").stderr.splitlines()[-1]
    assert told.startswith("ImportError: switchyard/app is a file") and "core.symlinks" in told


def test_an_editable_install_takes_no_other_name_either(tmp_path):
    source = copy_checkout(tmp_path)
    python = install(tmp_path / "environment", "-e", source)
    names = "[name for name in ('app', 'engine', 'wsgi') if importlib.util.find_spec(name)]"
    path, names = run(python, tmp_path, "-c", f"{FIND}; print({names})").stdout.splitlines()
    assert pathlib.Path(path).is_relative_to(source) and names == "[]"
