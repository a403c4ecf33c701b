"""`switchyard doctor`: what it says of a machine."""

import json

import pytest

from switchyard.cli import doctor as DOCTOR
from switchyard.engine.memory.gpus import AMPERE, NEEDED_DRIVER, Gpu

GOOD = Gpu("A GPU", (9, 0), 24 << 30, 20 << 30, "570.1")


@pytest.mark.parametrize(
    ("gpu", "probe", "says", "status"),
    [
        (GOOD, {"cuda": "12.8", "sees": 1, "extension": True}, "torch for CUDA 12.8 sees 1", 0),
        (GOOD, {"cuda": None, "sees": 0, "extension": True}, "build with CUDA", 1),
        (GOOD, {"cuda": "12.8", "sees": 0, "extension": True}, "sees no GPU", 1),
        (GOOD, {"cuda": "12.8", "sees": 1, "extension": "no compiler"}, "no compiler", 1),
        (
            Gpu("An old one", (7, 5), 8 << 30, 8 << 30, "470.2"),
            {"cuda": "12.8", "sees": 1, "extension": True},
            "It takes a driver from 525 on.",
            1,
        ),
        (
            Gpu("An older one", (7, 5), 8 << 30, 8 << 30, "570.2"),
            {"cuda": "12.8", "sees": 1, "extension": True},
            "flash-attn needs 8.0",
            0,
        ),
    ],
)
def test_doctor_says_what_follows(switchyard, monkeypatch, gpu, probe, says, status):
    monkeypatch.setattr(DOCTOR, "gpus", lambda: [gpu])
    monkeypatch.setattr(DOCTOR, "probe", lambda: probe)
    done = switchyard("doctor")
    assert says in done.output and done.exit_code == status
    assert gpu.name in done.output
    assert json.loads(switchyard("doctor", "--json").output)


def test_doctor_takes_the_first_gpu_driver_and_limit_that_will_do(switchyard, monkeypatch):
    gpu = Gpu("The first", AMPERE, 8 << 30, 8 << 30, f"{NEEDED_DRIVER}.1")
    monkeypatch.setattr(DOCTOR, "gpus", lambda: [gpu])
    monkeypatch.setattr(DOCTOR, "probe", lambda: {"cuda": "12.8", "sees": 1, "extension": True})
    monkeypatch.setattr(DOCTOR.resource, "getrlimit", lambda _: (1023, 1024))
    done = switchyard("doctor")
    assert done.exit_code == 0 and "flash-attn needs" not in done.output
    monkeypatch.setattr(DOCTOR.resource, "getrlimit", lambda _: (1023, 1023))
    assert switchyard("doctor").exit_code == 1


def test_doctor_asks_torch_itself(switchyard):
    told = DOCTOR.probe()
    assert told["sees"] == 0 and told["cuda"] is None
    assert "none that NVIDIA's driver knows" in switchyard("doctor").output


def test_doctor_says_that_torch_gave_no_answer(monkeypatch):
    monkeypatch.setattr(DOCTOR, "PROBE", "")
    assert DOCTOR.probe()["extension"].startswith("torch can't be asked: ")


def test_what_a_server_can_do_without_has_a_mark_of_its_own(switchyard, monkeypatch):
    monkeypatch.setattr(DOCTOR, "gpus", list)
    monkeypatch.setattr(DOCTOR, "_version", lambda name: None if name == "flash-attn" else "1")
    done = switchyard("doctor")
    assert done.exit_code == 0
    assert "- flash-attn: is not installed\n" in done.output
    assert (
        "- GPU: none that NVIDIA's driver knows\n" in done.output and "✓ torch: 1\n" in done.output
    )
    monkeypatch.setattr(DOCTOR, "_version", lambda name: None)
    done = switchyard("doctor")
    assert done.exit_code == 1 and "✗ torch: is not installed\n" in done.output
