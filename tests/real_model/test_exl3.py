"""The real model and the embedded one in EXL3, by exllamav3's own converter.

Run by TESTS_REAL_MODEL=DIR pytest tests/real_model/test_exl3.py -m gpu, with exllamav3 and its
compiled extension. Nothing is downloaded.
"""

import collections
import importlib.util
import json
import random
import subprocess
import sys

import pytest

from tests.conftest import DEMO, ROOT
from tests.real_model import checks
from tests.real_model.prompts import TEXTS
from training import conversations

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        importlib.util.find_spec("exllamav3_ext") is None, reason="exllamav3 is not compiled here"
    ),
]

MOST_BELOW = 0.03  # of a task's answers: fewer right ones than the EXL2 model has


def convert(path, bits, root, *options):
    """The converted model's directory; some minutes."""
    command = [sys.executable, "-m", "exllamav3.conversion.convert_model", "-i", path]
    command += ["-w", str(root / "work"), "-o", str(root / "model"), "-b", str(bits), *options]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=600)
    assert (root / "model" / "config.json").exists(), done.stdout[-3000:] + done.stderr[-3000:]
    return str(root / "model")


def check_scores(serve, path, texts):
    """Its perplexities are those that exllamav3 finds alone."""
    server = serve(path, device="cuda", cache_tokens=65536, max_seq_len=2048)
    token_ids = [server.post("/tokenize", {"prompt": text})["tokens"] for text in texts]
    told = checks.told_by("exl3_scores", path, token_ids)
    assert [len(each) for each in told] == [len(each) - 1 for each in token_ids]
    expected = [checks.perplexity(each) for each in told]
    checks.check_perplexities(server, expected, rel=0.005, texts=texts)


@pytest.fixture(scope="module")
def padded(path, tmp_path_factory):
    """The same model for a converter that wants widths of 128: see `tests.real_model.pad`."""
    target = tmp_path_factory.mktemp("padded") / "model"
    command = [sys.executable, "-m", "tests.real_model.pad", path, str(target)]
    subprocess.run(command, cwd=ROOT, check=True)
    return str(target)


@pytest.mark.parametrize("bits", [3, 4])
def test_the_real_model_scores_texts_as_exllamav3_does(serve, padded, tmp_path, bits):
    check_scores(serve, convert(padded, bits, tmp_path), TEXTS)


def rights(path, answers):
    """The share of right answers to each task."""
    command = [sys.executable, "-m", "training.evaluate", path, "--prompts", "200"]
    subprocess.run([*command, "--answers", answers], cwd=ROOT, stdout=subprocess.DEVNULL)
    found = collections.defaultdict(list)
    for answer in json.loads(answers.read_text()):
        found[answer["task"]].append(answer["right"])
    return {task: sum(each) / len(each) for task, each in found.items()}


def own_texts():
    """Of the kind that the embedded model was trained on."""
    r = random.Random("texts")
    stories = (conversations.document(r) for _ in range(400))
    return [text for text in stories if isinstance(text, str)][:8]


@pytest.mark.parametrize("bits", [3, 4])
def test_the_embedded_model_answers_as_well_as_in_exl2(serve, tmp_path, bits):
    """Calibrated, as that was, on documents like those that it was trained on."""
    calibration = tmp_path / "calibration.safetensors"
    command = [sys.executable, "-m", "tests.real_model.calibration", DEMO, str(calibration)]
    subprocess.run(command, cwd=ROOT, check=True)
    path = convert(DEMO, bits, tmp_path, "-cd", str(calibration), "-cr", "64")
    check_scores(serve, path, own_texts())
    expected = rights(f"{DEMO}-exl2", tmp_path / "exl2.json")
    found = rights(path, tmp_path / "exl3.json")
    for task, share in expected.items():
        print(f"{bits} bits, {task}: {found[task]:.1%}, EXL2 of 4 bits {share:.1%}")
    assert found.keys() == expected.keys()
    below = {task: found[task] for task in found if found[task] < expected[task] - MOST_BELOW}
    assert not below
