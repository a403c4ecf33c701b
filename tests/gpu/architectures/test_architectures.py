"""Each architecture on a GPU is what transformers computes, or refused by name."""

import json
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.gpu.architectures.make import TWIN
from tests.gpu.architectures.specs import SPECS

pytestmark = pytest.mark.gpu

TWINS = [f"{name}{TWIN}" for name, spec in SPECS.items() if spec.has_twin and not spec.refusal]


@pytest.mark.parametrize("name", [*SPECS, *TWINS])
def test_a_model_is_what_transformers_computes_or_refused(name, tmp_path):
    """In its own process, as `python -m tests.gpu.architectures` does, many at once."""
    command = [sys.executable, "-m", "tests.gpu.architectures", tmp_path, "--one", name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert not found["wrong"], found
