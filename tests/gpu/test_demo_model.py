"""The embedded model on a GPU, float16 and EXL2."""

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.gpu


def evaluate(model, path, prompts, **environment):
    """Exit status and answers of `training.evaluate`, in its own process."""
    command = [sys.executable, "-m", "training.evaluate", str(ROOT / "models" / model)]
    command += ["--prompts", str(prompts), "--answers", str(path)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, stdout=subprocess.PIPE, text=True
    )
    print(done.stdout)
    return done.returncode, json.loads(path.read_text())


def test_greedy_texts_are_those_of_the_cpu_backend(tmp_path):
    """20 prompts of each of a dozen tasks."""
    _, on_gpu = evaluate("demo", tmp_path / "gpu.json", 20)
    _, on_cpu = evaluate("demo", tmp_path / "cpu.json", 20, CUDA_VISIBLE_DEVICES="")
    assert len(on_gpu) == len(on_cpu) >= 200
    assert [answer["user"] for answer in on_gpu] == [answer["user"] for answer in on_cpu]
    same = sum(a["answer"] == b["answer"] for a, b in zip(on_gpu, on_cpu, strict=True))
    print(f"{same} of {len(on_cpu)} texts are the same")
    assert same >= 0.95 * len(on_cpu)


@pytest.mark.parametrize("model", ["demo", "demo-exl2"])
def test_it_scores_on_a_gpu(tmp_path, model):
    status, answers = evaluate(model, tmp_path / "answers.json", 100)
    assert status == 0
    assert len(answers) >= 1000
