"""scripts/bootstrap on machines with a GPU: the driver's library is a stand-in, compiled here, and
wheels with the right names, and next to nothing in them, come from a directory or an index here.
"""

import functools
import http.server
import importlib.metadata
import re
import shutil
import subprocess
import sys
import threading
import zipfile

import pytest
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.live.conftest import run_script

pytestmark = [
    pytest.mark.skipif(sys.version_info >= (3, 14), reason="there are no wheels for this Python"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="the stand-in for NVML is compiled"),
]
PYTHON = "{}.{}".format(*sys.version_info)
EXLLAMAV2, FLASH_ATTN = "0.3.2+cu128.torch2.8.0", "2.8.3+cu12torch2.8cxx11abitrue"
FOR_A_GPU = {"torch": "2.8.0", "exllamav2": EXLLAMAV2, "flash-attn": FLASH_ATTN}
UNSEEN = {"LD_LIBRARY_PATH": ""}

NVML = r"""
#include <stdio.h>
#include <stdlib.h>
typedef void *Device;
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, Device *d) { *d = (Device)(size_t)i; return 0; }
int nvmlDeviceGetName(Device d, char *name, unsigned n) { snprintf(name, n, "A GPU"); return 0; }
int nvmlDeviceGetMemoryInfo(Device d, void *memory) { return 0; }
int nvmlDeviceGetCudaComputeCapability(Device d, int *major, int *minor) {
    /* the second is an older one */
    sscanf(d ? "5.2" : getenv("NVML_CAPABILITY"), "%d.%d", major, minor);
    return 0;
}
int nvmlSystemGetDriverVersion(char *version, unsigned n) {
    snprintf(version, n, "%s", getenv("NVML_DRIVER"));
    return 0;
}
"""
TORCH = "class version:\n    cuda = {cuda!r}\n__version__ = '{version}'\n"
WITHOUT_CUDA = TORCH.format(cuda=None, version="2.8.0+cpu")
MODULES = {
    "torch": {"torch.py": TORCH.format(cuda="12.8", version="2.8.0+cu128")},
    "exllamav2": {"exllamav2_ext.py": "import torch\n"},
    "flash_attn": {"flash_attn.py": "import torch\n"},
    "gunicorn": {"gunicorn.py": "print('served')\n"},
}


@pytest.fixture(scope="session")
def nvml(tmp_path_factory):
    """Its directory."""
    directory = tmp_path_factory.mktemp("nvml")
    (directory / "nvml.c").write_text(NVML)
    command = ["cc", "-shared", "-fPIC", "-o", "libnvidia-ml.so.1", "nvml.c"]
    subprocess.run(command, cwd=directory, check=True)
    return directory


def make_wheel(directory, filename, modules=None):
    name, version, *_, tag = filename.removesuffix(".whl").split("-", 2)
    info = f"{name}-{version}.dist-info"
    files = {
        **(MODULES.get(name, {}) if modules is None else modules),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    with zipfile.ZipFile(directory / filename, "w") as wheel:
        for path, content in files.items():
            wheel.writestr(path, content)
        wheel.writestr(f"{info}/RECORD", "".join(f"{path},,\n" for path in files))


@pytest.fixture
def wheels(tmp_path, checkout):
    """All that the lists of `checkout` name. They are shortened to what has to be compiled, and
    gunicorn.
    """
    directory = tmp_path / "wheels"
    directory.mkdir()
    named = "torch==2.13.0\nexllamav2==0.3.2\ngunicorn==27.0.1\n"
    (checkout / "requirements.txt").write_text(named)
    compiled = re.compile(r"(?m)^(?:torch|exllamav2|flash-attn|gunicorn)\b.*\n")
    for name in ("requirements-cuda.txt", "requirements-cuda-source.txt"):
        kept = compiled.findall((checkout / name).read_text())
        (checkout / name).write_text("".join(kept))
    listed = (checkout / "requirements-cuda.txt").read_text()
    for name in re.findall(r"https://\S+/([^/#\s]+\.whl)", listed):
        make_wheel(directory, name)
    for name in ("torch-2.13.0", "torch-2.8.0", "exllamav2-0.3.2", "gunicorn-27.0.1"):
        make_wheel(directory, f"{name}-py3-none-any.whl")
    return directory


@pytest.fixture
def machine(tmp_path, checkout, wheels, nvml):
    """Runs scripts on a machine with a GPU and our Python, where pip looks in `wheels`."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3.13").symlink_to(sys.executable)

    def run(script="bootstrap", arguments=("requirements.txt",), cwd=None, **more):
        environment = {
            "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
            "LD_LIBRARY_PATH": str(nvml),
            "CUDA_VISIBLE_DEVICES": "0,1",
            "NVML_CAPABILITY": "8.6",
            "NVML_DRIVER": "550.127",
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(wheels),
        }
        environment = {name: value for name, value in (environment | more).items() if value}
        return run_script(checkout, *arguments, script=script, cwd=cwd, **environment)

    return run


def installed(checkout):
    sites = map(str, checkout.glob(".venv/lib/python*/site-packages"))
    found = importlib.metadata.distributions(path=list(sites))
    packages = {canonicalize_name(each.name): str(Version(each.version)) for each in found}
    return {name: packages.get(name) for name in ("torch", "exllamav2", "flash-attn")}


def assert_quiet(done):
    assert (done.returncode, done.stderr) == (0, "")


def test_a_server_starts_with_the_wheels_for_its_gpu(checkout, machine):
    done = machine("serve", (), SWITCHYARD_BIND="127.0.0.1:0")
    assert (done.returncode, done.stdout) == (0, "served\n"), done.stderr
    told, made = done.stderr.splitlines()
    says = "there is a GPU, A GPU: installing requirements-cuda.txt, over 4 GB"
    assert told == f"switchyard: {says}"
    assert made.startswith("switchyard: making .venv with python3.13")
    assert installed(checkout) == FOR_A_GPU
    again = machine("serve", (), SWITCHYARD_BIND="127.0.0.1:0")
    assert (again.returncode, again.stdout, again.stderr) == (0, "served\n", "")


@pytest.mark.hardship
def test_an_older_gpu_goes_without_flash_attn_until_there_is_another(
    checkout, machine, environment
):
    done = machine(NVML_CAPABILITY="7.5")
    assert done.returncode == 0
    assert "without flash-attn: it needs compute capability 8.0, but this is 7.5" in done.stderr
    assert installed(checkout)["exllamav2"] == EXLLAMAV2
    assert installed(checkout)["flash-attn"] is None
    assert machine(NVML_CAPABILITY="7.5").stderr == ""
    assert machine().returncode == 0
    assert installed(checkout)["flash-attn"] == FLASH_ATTN


def assert_refused(checkout, done, says):
    assert done.returncode == 3 and says in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (checkout / ".venv").exists()


OLD = "the driver of A GPU, 470.82.01, is too old for CUDA 12: install 525 or newer"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"NVML_DRIVER": "470.82.01"}, OLD),
        ({"NVML_CAPABILITY": "6.1"}, "A GPU has compute capability 6.1, but torch's build"),
    ],
)
def test_a_gpu_that_the_wheels_are_not_for_is_told_in_one_line(checkout, machine, more, says):
    assert_refused(checkout, done := machine(**more), says)
    assert "SWITCHYARD_DEVICE=cpu runs without the GPU" in done.stderr


def test_a_python_without_wheels_is_told_in_one_line(checkout, machine):
    listed = checkout / "requirements-cuda.txt"
    listed.write_text(listed.read_text().replace(f'"{PYTHON}"', '"3.99"'))
    assert_refused(checkout, machine(), f"but this is {PYTHON}: install one of these")


@pytest.mark.skipif(shutil.which("setarch") is None, reason="pretends to be another machine")
def test_another_machine_is_told_in_one_line(checkout, machine, tmp_path):
    python = tmp_path / "bin" / "python3.13"
    python.unlink()
    python.write_text(f'#!/bin/sh\nexec setarch i686 {sys.executable} "$@"\n')
    python.chmod(0o755)
    assert_refused(checkout, machine(), "is for Linux on x86-64, not linux on i686")


@pytest.mark.parametrize(
    "more",
    [
        {"SWITCHYARD_DEVICE": "cpu"},
        {"CUDA_VISIBLE_DEVICES": "-1"},
        {"SWITCHYARD_CONFIG": "elsewhere.toml"},
        {},  # except for switchyard.toml where the caller is
    ],
    ids=lambda more: "".join(more) or "file",
)
def test_an_operator_who_wants_the_cpu_gets_it(checkout, machine, environment, tmp_path, more):
    name = more.get("SWITCHYARD_CONFIG", "switchyard.toml")
    is_said_there = set(more) <= {"SWITCHYARD_CONFIG"}
    (tmp_path / name).write_text('device = "cpu"\n' if is_said_there else "")
    done = machine(cwd=tmp_path, NVML_DRIVER="470.1", **more)
    assert (done.returncode, done.stderr) == (0, "switchyard: installing requirements.txt\n")
    assert installed(checkout)["torch"] == "2.13.0"


def test_an_image_for_gpus_is_built_without_one(checkout, machine, environment):
    done = machine(SWITCHYARD_DEVICE="cuda", **UNSEEN)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "switchyard: installing requirements-cuda.txt, over 4 GB\n"
    assert installed(checkout)["flash-attn"] == FLASH_ATTN


def test_packages_for_a_gpu_replace_others_but_what_was_compiled_and_stay_when_it_is_not_seen(
    checkout, machine, environment
):
    assert machine(**UNSEEN).returncode == 0
    stamp = checkout / ".venv" / "requirements.txt.installed"
    others = stamp.read_text()
    # As docs/deployment.md has it: with this stamp.
    shutil.copy(checkout / "requirements-cuda-source.txt", stamp)
    for more in ({}, {"NVML_DRIVER": "470.1"}, UNSEEN):
        assert_quiet(machine(**more))
    assert installed(checkout)["torch"] == "2.13.0"
    stamp.write_text(others)
    assert "requirements-cuda.txt" in machine().stderr
    for more in (UNSEEN, {"SWITCHYARD_DEVICE": "cpu"}):
        assert_quiet(machine(**more))
        assert installed(checkout) == FOR_A_GPU


@pytest.mark.hardship
@pytest.mark.parametrize(
    ("wheel", "code", "says"),
    [
        ("torch-2.8.0-*", WITHOUT_CUDA, "torch 2.8.0+cpu is built without CUDA"),
        ("exllamav2-0.3.2+cu128*", "", "No module named 'exllamav2_ext'"),
        ("flash_attn-*", "raise ImportError('undefined symbol')", "undefined symbol"),
    ],
)
def test_packages_that_do_not_work_together_are_told_in_one_line(
    checkout, machine, environment, wheels, wheel, code, says
):
    for path in wheels.glob(wheel):
        make_wheel(wheels, path.name, {f"{path.name.partition('-')[0]}.py": code})
    done = machine()
    assert done.returncode == 3
    [_, told] = done.stderr.splitlines()
    assert "requirements-cuda.txt is installed, but does not work: " in told and says in told
    assert machine().returncode == 3  # and not taken for done


@pytest.fixture
def index(wheels):
    """A package index and a site of releases: (address, the paths that were asked for)."""
    asked = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            asked.append(self.path)

    simple = wheels / "simple"
    for name in ("torch", "gunicorn", "exllamav2"):
        (simple / name).mkdir(parents=True)
        found = [path.name for path in wheels.glob(f"{name}-*-py3-none-any.whl")]
        links = "".join(f'<a href="/{each}">{each}</a>' for each in found)
        (simple / name / "index.html").write_text(f"<!DOCTYPE html><html>{links}</html>")
    handler = functools.partial(Handler, directory=str(wheels))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, name="index")
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


@pytest.mark.hardship
def test_wheels_that_an_index_lacks_come_from_their_addresses(
    checkout, machine, environment, index
):
    """Each Python's own, and with the content that the list says."""
    address, asked = index
    listed = checkout / "requirements-cuda.txt"
    moved = re.sub(r"https://\S+/(?=[^/\s]+\.whl)", f"{address}/", listed.read_text())
    listed.write_text(moved)
    found = {"PIP_NO_INDEX": "", "PIP_FIND_LINKS": "", "PIP_INDEX_URL": f"{address}/simple/"}
    done = machine(**found)
    assert done.returncode == 1
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in done.stderr  # flash-attn's, of a stand-in
    assert done.stderr.endswith("pip could not install requirements-cuda.txt; see above\n")
    listed.write_text(re.sub("#sha256=[0-9a-f]+", "", moved))
    done = machine(**found)
    assert done.returncode == 0, done.stderr
    assert installed(checkout) == FOR_A_GPU
    fetched = {path for path in asked if "cp3" in path}
    assert fetched and all(f"-cp{PYTHON.replace('.', '')}-" in path for path in fetched)


@pytest.mark.parametrize(
    ("lines", "configured", "extra"),
    [
        ("torch==2.13.0", {}, True),
        ("torch==2.13.0", {"PIP_INDEX_URL": "http://127.0.0.1:9/simple/"}, False),
        ("torch==2.13.0", {"PIP_FIND_LINKS": "/wheels"}, False),
        (f'exllamav2 @ https://h/e-0.3.2-cp-l.whl ; python_version == "{PYTHON}"', {}, False),
    ],
)
def test_torch_without_cuda_is_looked_for_where_no_index_is_configured(
    checkout, lines, configured, extra
):
    """Seen by what pip is called with."""
    code = (
        "import sys; sys.path.insert(0, 'scripts'); import packages\n"
        "pip = packages.pip\n"
        "def see(*arguments, **options):\n"
        "    if arguments[0] != 'install': return pip(*arguments, **options)\n"
        "    print(arguments); sys.exit()\n"
        "packages.pip = see\n"
        f"packages.install({lines!r}, 'requirements.txt')\n"
    )
    command = [sys.executable, "-B", "-c", code]
    environment = {"PIP_CONFIG_FILE": "/dev/null", **configured}
    told = subprocess.check_output(command, cwd=checkout, env=environment, text=True)
    assert ("https://download.pytorch.org/whl/cpu" in told) == extra
    assert ("'--only-binary', ':all:'" in told) == (" @ " in lines)
