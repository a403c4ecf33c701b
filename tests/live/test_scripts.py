"""scripts/serve, bootstrap and test in a checkout where nothing is installed yet."""

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap

import pytest

from tests.conftest import DEMO
from tests.live.conftest import run_script


def test_help_comes_before_anything_is_installed(checkout):
    for name in ("serve", "bootstrap"):
        done = run_script(checkout, "--help", script=name)
        assert done.returncode == 0 and f"Usage: {name}" in done.stdout
    for wrong in (["--port", "1"], ["a", "b"], ["--bind"], ["--set", "name"], ["--config", "no"]):
        done = run_script(checkout, *wrong)
        assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert not (checkout / ".venv").exists()


def assert_refused(checkout, done, says, status=3):
    """In one line, before anything is installed."""
    assert (done.returncode, done.stderr.count("\n")) == (status, 1) and says in done.stderr
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("missing", "model directory missing does not exist"),
        ("turboderp/Llama-3-exl2", "hf download turboderp/Llama-3-exl2"),
        ("model.gguf", "GGUF, llama.cpp's format"),
        (
            "models",
            "models is not a model, but a folder of models: choose one, such as models/demo",
        ),
        ("requirements.txt", "give the directory that contains all of the model's files"),
    ],
)
def test_a_wrong_model_is_told_before_anything_is_installed(checkout, given, says):
    (checkout / "model.gguf").write_bytes(b"GGUF")
    assert_refused(checkout, run_script(checkout, given), says)


def test_a_wrong_model_of_a_variable_or_a_file_is_told_too(checkout):
    says = "model directory missing does not exist"
    assert_refused(checkout, run_script(checkout, SWITCHYARD_MODEL="missing"), says)
    (checkout / "switchyard.toml").write_text('model = "missing"\n')
    assert_refused(checkout, run_script(checkout), says)


@pytest.mark.parametrize("draft", [None, "models/draft"])
def test_a_model_that_can_not_be_loaded_here_is_told_as_by_check(checkout, draft):
    """Quantized, where there is no GPU; and cut off."""
    model = checkout / (draft or "models/other")
    shutil.copytree(f"{DEMO}-exl2", model)
    more = {"SWITCHYARD_MODEL": str(checkout / "models/demo" if draft else model)}
    if draft:
        more["SWITCHYARD_DRAFT_MODEL"] = draft
    says = (
        "only a CUDA device can serve them; the CPU backend needs the unquantized model. NVIDIA's"
    )
    assert_refused(checkout, run_script(checkout, **more), says)
    weights = model / "output.safetensors"
    size = weights.stat().st_size
    weights.write_bytes(weights.read_bytes()[:-100])
    says = f"it is cut off after {size - 100} of {size} bytes; download it again"
    assert_refused(checkout, run_script(checkout, **more), says)


def test_a_taken_port_is_told_before_anything_is_installed(checkout):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        bind = f"127.0.0.1:{listener.getsockname()[1]}"
        done = run_script(checkout, SWITCHYARD_BIND=bind)
        waits = subprocess.run(
            [sys.executable, "-IB", checkout / "scripts" / "preflight.py"],
            env={"SWITCHYARD_BIND": bind, "SWITCHYARD_BIND_WAIT": "9"},
            cwd=checkout,
        )
    assert_refused(checkout, done, f"{bind} is taken by another program")
    assert waits.returncode == 0
    done = run_script(checkout, SWITCHYARD_BIND="192.0.2.1:80")
    assert_refused(checkout, done, "can't listen on")


BIND = {"SWITCHYARD_BIND": "127.0.0.1:0"}
SERVED = "served glibc.malloc.tcache_count=0\n"


@pytest.fixture
def installed(checkout):
    """All that the stamps say is there; gunicorn is a word."""
    python = checkout / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        '#!/bin/sh\n[ "$1" = -c ] && [ "$3" = -c ] && echo "served $GLIBC_TUNABLES" && exit\n'
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    shutil.copy(python, python.with_name("switchyard"))
    (checkout / ".venv" / "requirements.txt.installed").write_text("")
    (checkout / ".venv" / ".place").write_text(f"{checkout}\n")
    return checkout


def test_where_all_is_installed_nothing_is_written(installed):
    """As by a service user, who may not, and has no home."""

    def seen():
        return {path: path.lstat().st_mtime_ns for path in installed.rglob("*")}

    before = seen()
    done = run_script(installed, **BIND)
    assert (done.returncode, done.stdout, done.stderr) == (0, SERVED, "")
    assert seen() == before


def test_serve_passes_its_options_on_as_settings(installed):
    python = installed / ".venv" / "bin" / "python"
    python.write_text(python.read_text().replace("served $GLIBC_TUNABLES", "$(env)"))
    (installed / "mine.toml").write_text("")
    options = ["--config", "mine.toml", "--bind=127.0.0.1:0", "--set", "name=a b=c", "models/demo"]
    done = run_script(installed, *options)
    given = {line for line in done.stdout.splitlines() if line.startswith("SWITCHYARD_")}
    wanted = ("CONFIG=mine.toml", "BIND=127.0.0.1:0", "NAME=a b=c", "MODEL=models/demo")
    assert given == {f"SWITCHYARD_{each}" for each in wanted}


def test_a_checkout_that_can_not_be_written_to_and_lacks_packages_is_told_in_one_line(checkout):
    (checkout / ".venv.lock").mkdir()  # root, too, can't write to that
    says = f"{checkout} can't be written to, and lacks packages: run"
    assert_refused(checkout, run_script(checkout, **BIND), says, status=1)


def test_a_checkout_that_was_moved_serves(installed, tmp_path):
    moved = installed.rename(tmp_path / "moved")
    done = run_script(moved, **BIND)
    assert (done.returncode, done.stdout, done.stderr) == (0, SERVED, "")


def test_an_operators_own_tunables_stay(installed):
    own = "glibc.malloc.arena_max=2"
    assert run_script(installed, **BIND, GLIBC_TUNABLES=own).stdout == f"served {own}\n"


def test_packages_are_installed_once_and_again_when_the_file_changes(checkout, environment):
    files = ("requirements.txt", "requirements-dev.txt")
    requirements = checkout / "requirements.txt"
    (checkout / "requirements-dev.txt").write_text("")

    def bootstrap():
        more = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        return run_script(checkout, *files, script="bootstrap", **more)

    for line, name in zip(bootstrap().stderr.splitlines(), files, strict=True):
        assert line.startswith(f"switchyard: installing {name}")
    assert bootstrap().stderr == ""
    package = checkout / "switchyard"
    (package / "__init__.py").write_text("print(__file__)\n")
    (package / "cli.py").write_text("import sys\nmain = lambda prog_name: print(sys.argv[1:])\n")
    moved = checkout.rename(checkout.with_name("moved"))
    (moved.parent / "switchyard").symlink_to(moved / ".venv" / "bin" / "switchyard")
    says = subprocess.check_output(
        ["./switchyard", "status", "a b"], cwd=moved.parent, env={"PATH": os.defpath}, text=True
    )
    assert says == f"{moved / 'switchyard' / '__init__.py'}\n['status', 'a b']\n"
    moved.rename(checkout)
    (checkout / "requirements-dev.txt").write_text("# another\n")
    assert bootstrap().stderr == "switchyard: installing requirements-dev.txt\n"
    requirements.write_text("no-such-package-of-switchyard==9\n")
    failed = bootstrap()
    assert failed.returncode == 1
    says = "switchyard: pip could not install requirements.txt; see above"
    assert failed.stderr.splitlines()[-1] == says


def test_a_python_that_another_user_can_not_reach_is_told(installed):
    """Its link leads nowhere, as far as that user sees."""
    python = installed / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/root/no/such/python3")
    (installed / ".venv" / "pyvenv.cfg").write_text("home = /root/no/such\n")
    (installed / ".venv.lock").mkdir()  # root, too, can't write to that
    done = run_script(installed, **BIND)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert f"can't run {python}: it is a Python of /root/no/such. As the owner" in done.stderr
    assert "lacks packages" not in done.stderr


def popen(checkout, script="serve", *arguments, **more):
    """In its own process group, as a terminal makes one for each command; and with SIGINT as
    there, which is ignored in what a script has begun with `&`, the tests for one.
    """
    return subprocess.Popen(
        [str(checkout / "scripts" / script), *arguments],
        cwd=checkout,
        env={"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": "", **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def interrupted(process, line):
    """Ctrl-C once it has printed that: (exit status, all that it prints afterwards)."""
    with process:
        for printed in process.stdout:
            if line in printed:
                os.killpg(process.pid, signal.SIGINT)
                return process.stdout.read(), process.wait()
    raise AssertionError(f"{line} was not printed")


PAUSE = "import signal, sys\nprint('paused', flush=True)\nsignal.pause()\n"


def test_ctrl_c_while_the_environment_is_made(checkout):
    made = f"{PAUSE}import os\nos.mkdir('.venv')\n"
    (checkout / "venv.py").write_text(f"def main(arguments):\n{textwrap.indent(made, '    ')}")
    told, status = interrupted(popen(checkout, **BIND), "paused")
    assert (told, status) == ("", 130)
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize("cleans_up", [False, True])
def test_ctrl_c_while_packages_are_installed(installed, tmp_path, cleans_up):
    """While pip is imported; and while it works, and cleans up before it ends."""
    (installed / ".venv" / "requirements.txt.installed").unlink()
    code = f"try:\n{textwrap.indent(PAUSE, '    ')}except KeyboardInterrupt:\n    print('clean')\n"
    code = code if cleans_up else PAUSE
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "__init__.py").write_text("")
    wanted = "import sys\nif 'install' in sys.argv:\n" + textwrap.indent(code, "    ")
    (tmp_path / "pip" / "__main__.py").write_text(wanted)
    process = popen(installed, "bootstrap", "requirements.txt", PYTHONPATH=str(tmp_path))
    told, status = interrupted(process, "paused")
    assert (told, status) == ("clean\n" if cleans_up else "", 130)
    assert not (installed / ".venv" / "requirements.txt.installed").exists()


def test_ctrl_c_while_the_server_is_imported(installed):
    python = installed / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (installed / "gunicorn.py").write_text(PAUSE)
    told, status = interrupted(popen(installed, **BIND), "paused")
    assert (told, status) == ("", -signal.SIGINT)  # of which a shell makes 130


def test_a_start_beside_another_that_installs_says_that_it_waits(installed):
    (installed / ".venv" / "requirements.txt.installed").write_text("old")
    with (installed / ".venv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = popen(installed, "bootstrap", "requirements.txt")
        line = process.stdout.readline()
        (installed / ".venv" / "requirements.txt.installed").write_text("")
    with process:
        assert line == "switchyard: another start is installing; waiting for it\n"
        assert (process.stdout.read(), process.wait()) == ("", 0)


def test_a_terminal_sees_at_once_what_is_started(installed):
    ours, theirs = os.openpty()
    environment = {"PATH": os.environ["PATH"], **BIND}
    command = [installed / "scripts" / "serve", "no/model"]
    with subprocess.Popen(command, env=environment, stderr=theirs, cwd=installed) as process:
        os.close(theirs)
        with os.fdopen(ours, errors="replace") as terminal:
            assert terminal.readline() == "switchyard: starting no/model\n"
            assert "model directory no/model does not exist" in terminal.readline()
    assert process.returncode == 3


def test_python_is_missing(checkout, tmp_path):
    (tmp_path / "bin").mkdir()
    for name in ("dirname", "sed"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name))
    done = run_script(checkout, PATH=str(tmp_path / "bin"))
    assert done.returncode == 1
    assert "Python 3.11 to 3.14 is missing" in done.stderr and "uv python install" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "check", "runs"),
    [
        ((), "exit 0", ["check", "bootstrap", "-m pytest -n 4 --dist worksteal"]),
        ((), "exit 1", ["check"]),
        (("-x", "a b"), "exit 1", ["bootstrap", "-m pytest -n 4 --dist worksteal -x a b"]),
    ],
)
def test_the_code_is_checked_before_all_tests(installed, arguments, check, runs):
    """pytest comes last, and its status is the script's. Part of the tests run without a check."""
    python = "../.venv/bin/python"
    for path, then in (("check", check), ("bootstrap", "exit 0"), (python, "exit 7")):
        said = '"$@"' if path == python else path
        (installed / "scripts" / path).write_text(f"#!/bin/sh\necho {said}\n{then}\n")
    done = run_script(installed, *arguments, script="test")
    assert done.stdout.splitlines() == runs
    assert done.returncode == (1 if runs == ["check"] else 7)
