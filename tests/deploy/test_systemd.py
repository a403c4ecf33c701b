"""The units of deploy/systemd, read by systemd's own tool."""

import re
import shutil
import subprocess

import pytest

from switchyard.server.worker import BOOT_ERROR
from tests.conftest import ROOT

UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
EXPOSURE = 3.0  # of 10; above that systemd calls a service medium


@pytest.fixture
def unit(request, tmp_path):
    """As if this checkout were the installed one, whose programs systemd looks for."""
    path = tmp_path / request.param.name.replace("@", "@8001")
    path.write_text(request.param.read_text().replace("/opt/switchyard", str(ROOT)))
    return path


def analyze(*arguments):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is Debian's package systemd, which isn't here")
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True)


@pytest.mark.parametrize("unit", UNITS, indirect=True, ids=lambda path: path.name)
def test_systemd_finds_no_fault(unit):
    if "bin/switchyard" in unit.read_text() and not (ROOT / ".venv/bin/switchyard").exists():
        pytest.skip("the checkout has no command: scripts/bootstrap makes it")
    done = analyze("verify", unit)
    # Of the machine's own units it may complain.
    assert [line for line in done.stderr.splitlines() if "switchyard" in line] == []


@pytest.mark.parametrize("unit", UNITS, indirect=True, ids=lambda path: path.name)
def test_its_exposure_is_low(unit):
    done = analyze("security", "--offline=true", unit)
    overall = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert overall and float(overall[1]) < EXPOSURE, done.stdout + done.stderr


@pytest.mark.parametrize("unit", UNITS, indirect=True, ids=lambda path: path.name)
def test_it_waits_for_the_warm_model_and_does_not_start_again_what_can_not_load(unit):
    lines = unit.read_text().splitlines()
    assert "Type=notify" in lines
    assert f"RestartPreventExitStatus={BOOT_ERROR}" in lines
