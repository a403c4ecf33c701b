"""`switchyard doctor`: what it says of a machine."""

import json
from dataclasses import replace
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec

import pytest

from switchyard.cli import doctor as DOCTOR
from switchyard.engine.backends import exl3
from switchyard.engine.memory.gpus import AMPERE, NEEDED_DRIVER, Gpu

GOOD = Gpu("A GPU", (9, 0), 24 << 30, 20 << 30, "570.1")


OLD = Gpu("An old one", (7, 5), 8 << 30, 8 << 30, "470.2")
OLDER = replace(OLD, name="An older one", driver="570.2")
TORCH = {"cuda": "12.8", "sees": 1, "extension": True}


@pytest.fixture
def has_exl3(monkeypatch, tmp_path):
    """A machine with all that EXL3 models need. Returns a folder whose `there` has the headers."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "Python.h").touch()
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(DOCTOR, "check_installed", lambda: None)
    monkeypatch.setattr(DOCTOR, "_version", lambda name: "1")
    monkeypatch.setattr(DOCTOR.shutil, "which", lambda name: name)
    monkeypatch.setattr(DOCTOR.sysconfig, "get_path", lambda name: str(tmp_path / "there"))
    return tmp_path


@pytest.mark.parametrize(
    ("gpu", "probe", "says", "status"),
    [
        (GOOD, {}, "torch for CUDA 12.8 sees 1", 0),
        (GOOD, {"cuda": None, "sees": 0}, "build with CUDA", 1),
        (GOOD, {"sees": 0}, "sees no GPU", 1),
        (GOOD, {"extension": "no compiler", "exl3": "x"}, "no compiler", 1),
        (OLD, {}, "It needs driver 525 or newer.", 1),
        (OLDER, {}, "flash-attn needs 8.0", 0),
        (GOOD, {"extension": "none", "exl3": True}, "✓ exllamav3: 1, for EXL3 models", 0),
        (GOOD, {"extension": "none", "exl3": "undefined\nsymbol: x"}, "(undefined symbol: x)", 1),
        (OLDER, {"exl3": True}, "but GPU 0, An older one, has 7.5", 0),
    ],
)
def test_doctor_says_what_follows(switchyard, monkeypatch, has_exl3, gpu, probe, says, status):
    monkeypatch.setattr(DOCTOR, "gpus", lambda: [gpu])
    monkeypatch.setattr(DOCTOR, "probe", lambda: TORCH | probe)
    output = switchyard.told(status, "doctor")
    assert says in output and gpu.name in output
    assert json.loads(switchyard("doctor", "--json").output)


def test_doctor_takes_the_first_gpu_driver_and_limit_that_will_do(switchyard, monkeypatch):
    gpu = Gpu("The first", AMPERE, 8 << 30, 8 << 30, f"{NEEDED_DRIVER}.1")
    monkeypatch.setattr(DOCTOR, "gpus", lambda: [gpu])
    monkeypatch.setattr(DOCTOR, "probe", lambda: TORCH)
    monkeypatch.setattr(DOCTOR.resource, "getrlimit", lambda _: (1023, 1024))
    assert "flash-attn needs" not in switchyard.told(0, "doctor")
    monkeypatch.setattr(DOCTOR.resource, "getrlimit", lambda _: (1023, 1023))
    assert switchyard("doctor").exit_code == 1


def test_doctor_asks_torch_itself(switchyard):
    told = DOCTOR.probe()
    assert told["sees"] == 0 and told["cuda"] is None
    assert "NVIDIA's driver reports none" in switchyard("doctor").output


def test_doctor_says_that_torch_gave_no_answer(monkeypatch):
    monkeypatch.setattr(DOCTOR, "PROBE", "")
    assert DOCTOR.probe()["extension"].startswith("torch can't be queried: ")


def test_what_a_server_can_do_without_has_a_mark_of_its_own(switchyard, monkeypatch):
    monkeypatch.setattr(DOCTOR, "gpus", list)
    monkeypatch.setattr(DOCTOR, "_version", lambda name: None if name == "flash-attn" else "1")
    output = switchyard.told(0, "doctor")
    assert "- flash-attn: not installed\n" in output and "✓ torch: 1\n" in output
    assert "- GPU: NVIDIA's driver reports none\n" in output
    monkeypatch.setattr(DOCTOR, "_version", lambda name: None)
    assert "✗ torch: not installed\n" in switchyard.told(1, "doctor")


@pytest.fixture
def on_linux(monkeypatch):
    monkeypatch.setattr(DOCTOR.sysconfig, "get_platform", lambda: "linux-x86_64")


@pytest.mark.parametrize("python", ["3.11.2", "3.12.0", "3.13.9"])
def test_pinned_wheels_fit_each_other_and_each_python(on_linux, python):
    line = DOCTOR.of_pins(DOCTOR.PINS[0], python, is_needed=True)
    assert line.is_good, line
    assert line.told.startswith("exllamav2 0.3.2, flash-attn 2.8.3 are for torch 2.8.0, CUDA 12")


@pytest.mark.parametrize(
    ("before", "after", "python", "says"),
    [
        ("torch==2.8.0", "torch==2.9.0", "3.11.2", "built for torch 2.8.0, but torch is 2.9.0"),
        ("torch==2.8.0", "", "3.11.2", "but torch is None"),
        ("cp312-cp312", "cp311-cp311", "3.11.2", "exllamav2 for Python 3.12 is a wheel for cp311"),
        ("+cu128", "+cu118", "3.11.2", "wheels are for CUDA 11 and 12"),
        ("", "", "3.14.0", "for Python 3.11, 3.12, 3.13 on linux_x86_64; this is 3.14.0 on "),
        ("linux_x86_64", "win_amd64", "3.11.2", "on win_amd64; this is 3.11.2 on linux_x86_64"),
    ],
)
def test_pinned_wheels_that_do_not_fit_are_named(on_linux, tmp_path, before, after, python, says):
    pins = tmp_path / "pins.txt"
    pins.write_text(DOCTOR.PINS[0].read_text().replace(before, after))
    line = DOCTOR.of_pins(pins, python, is_needed=True)
    assert line.is_good is False and says in line.told


@pytest.mark.parametrize(
    ("pins", "python", "is_good"), [(0, "3.14.0", None), (1, "3.12.1", True), (1, "3.11.2", None)]
)
def test_wheels_that_are_not_needed_are_no_fault_where_they_do_not_fit(
    on_linux, pins, python, is_good
):
    assert DOCTOR.of_pins(DOCTOR.PINS[pins], python, is_needed=False).is_good is is_good


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        ("exllamav3", "EXL3 needs exllamav3"),
        ("extension", "has no compiled extension"),
        ("triton", "EXL3 needs Triton"),
    ],
)
def test_doctor_says_what_exl3_lacks(switchyard, monkeypatch, missing, says):
    def version(name):
        if missing == "exllamav3":
            raise exl3.importlib.metadata.PackageNotFoundError(name)
        return exl3.EXLLAMAV3_VERSION

    lacks = {"extension": [exl3.EXTENSION], "triton": ["triton"]}.get(missing, [])
    there = ModuleSpec("any", None, origin=f"any{EXTENSION_SUFFIXES[0]}")
    monkeypatch.setattr(DOCTOR, "_version", lambda name: None if name == missing else "1")
    monkeypatch.setattr(exl3.importlib.metadata, "version", version)
    monkeypatch.setattr(
        exl3.importlib.util, "find_spec", lambda name: None if name in lacks else there
    )
    for name in lacks:
        monkeypatch.delitem(exl3.sys.modules, name, raising=False)
    found = [line for line in switchyard("doctor").output.splitlines() if "exllamav3:" in line]
    assert len(found) == 1 and found[0].startswith("- exllamav3: ") and says in found[0]


@pytest.mark.parametrize(
    ("compiler", "include", "says"),
    [
        ("gcc", "there", "✓ exllamav3: 1, for EXL3 models"),
        ("clang", "there", "✓ exllamav3: 1, for EXL3 models"),
        ("cl", "there", "headers: a compiler is missing"),
        ("gcc", "gone", "Python.h is missing"),
    ],
)
def test_doctor_says_that_triton_can_not_compile(
    switchyard, monkeypatch, has_exl3, compiler, include, says
):
    monkeypatch.setattr(DOCTOR, "gpus", list)
    monkeypatch.setattr(DOCTOR.shutil, "which", lambda name: compiler if name == compiler else None)
    monkeypatch.setattr(DOCTOR.sysconfig, "get_path", lambda name: str(has_exl3 / include))
    assert says in switchyard.told(0, "doctor")


def test_doctor_warns_of_a_clusters_ports_that_others_may_reach(switchyard, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "switchyard.toml").write_text(
        '[cluster]\nhead = "10.0.0.1"\nnetwork = "10.0.0.0/24"\n'
    )
    found = {"192.168.1.5": [6379, 20001]}
    monkeypatch.setattr(DOCTOR, "answers_outside", lambda *_: found)
    assert (
        "- cluster: 2 ports also accept connections at 192.168.1.5, outside 10.0.0.0/24: 6379"
        " to 20001\n"
        "    Block all other networks with a firewall.\n"
    ) in switchyard("doctor").output
    found.clear()
    assert (
        "✓ cluster: none of its ports accepts connections outside 10.0"
        in switchyard("doctor").output
    )
    (tmp_path / "switchyard.toml").write_text("[cluster]\n")
    assert "✗ settings: " in switchyard("doctor").output
