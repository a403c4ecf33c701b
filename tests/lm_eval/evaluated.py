"""What lm_eval asks a server and gets, by task."""

import json
import os
import pathlib
import subprocess
import sys

from tests.conftest import ROOT

HERE = "tests/lm_eval"


def evaluate(directory, tasks, arguments, *options):
    """Samples of each task. `arguments` are those of lm_eval's model."""
    command = [sys.executable, "-m", "lm_eval", "--tasks", ",".join(tasks), *options]
    command += ["--model_args", ",".join(f"{k}={v}" for k, v in arguments.items())]
    command += ["--output_path", str(directory / "out"), "--log_samples"]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(directory)}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **offline},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    print(" ".join(command), done.stdout, sep="\n")  # with pytest -s
    found = {}
    for task in tasks:
        [path] = pathlib.Path(directory).glob(f"out/**/samples_{task}_*.jsonl")
        found[task] = [json.loads(line) for line in path.read_text().splitlines()]
    return found
