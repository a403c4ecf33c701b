"""The real model on a GPU, as float16 and as EXL2 of exllamav2's own converter, with every cache.

Run by TESTS_REAL_MODEL=DIR pytest tests/real_model -m gpu. Nothing is downloaded. The converter
needs pandas and fastparquet.
"""

import subprocess
import sys

import pytest

from tests.real_model import checks
from tests.real_model.prompts import PROSE, TEXTS, said

pytestmark = pytest.mark.gpu

TIE = 0.1  # nats, of float16
BITS = 6.0
CACHE_MODES = ("float16", "Q8", "Q6", "Q4")
NUM_JOBS = 200
FEW_TOKENS = 4096  # of cache: sixteen pages, which are soon used again


@pytest.fixture(scope="module")
def exl2(path, tmp_path_factory):
    """The converted model's directory; some minutes."""
    root = tmp_path_factory.mktemp("exl2")
    work, target = root / "work", root / "model"
    work.mkdir()
    command = [sys.executable, "-m", "exllamav2.conversion.convert_exl2", "-i", path]
    command += ["-o", str(work), "-nr", "-cf", str(target), "-b", str(BITS)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return str(target)


@pytest.fixture(scope="module", params=["float16", "EXL2"])
def kind(request, path):
    """Name and directory of one kind of weights."""
    return request.param, path if request.param == "float16" else request.getfixturevalue("exl2")


def test_float16_texts_are_those_of_transformers(serve, path, reference):
    server = serve(path, device="cuda", cache_tokens=65536, max_seq_len=4096)
    alone = checks.check_greedy(server, reference, TIE)
    checks.check_together(server, alone, TIE)
    expected = []
    for text in TEXTS:
        token_ids = reference.tokenizer(text, add_special_tokens=False)["input_ids"]
        expected.append(checks.perplexity(reference.scores(token_ids)))
    checks.check_perplexities(server, expected, rel=0.005)
    checks.check_schema(server)


def test_exl2_scores_texts_as_exllamav2_does(serve, exl2):
    told = checks.told_by("exl2_scores", exl2, TEXTS)
    server = serve(exl2, device="cuda", cache_tokens=65536, max_seq_len=4096)
    checks.check_perplexities(server, [checks.perplexity(one) for one in told], rel=0.005)
    checks.check_schema(server)


@pytest.mark.parametrize("cache_mode", CACHE_MODES)
def test_many_short_jobs_one_after_another_end_well(serve, kind, cache_mode):
    """The generator falls idle after each, and pages of the cache are used again. Texts stay."""
    _, path = kind
    settings = {"cache_tokens": FEW_TOKENS, "max_seq_len": 2048, "cache_mode": [cache_mode]}
    server = serve(path, device="cuda", **settings)
    chats = [
        said(f"{PROSE[start : start + 1500]}\nWhat is this text about?", system="Be brief.")
        for start in range(0, 60_000, 6_000)
    ]
    first = [server.answer(chat, max_tokens=12).text for chat in chats]
    texts = [server.answer(chats[i % len(chats)], max_tokens=12).text for i in range(NUM_JOBS)]
    same = sum(text == first[i % len(chats)] for i, text in enumerate(texts))
    print(f"{same} of {NUM_JOBS} texts are the same")
    if cache_mode in ("float16", "Q8"):  # else a cached page differs from the computed one
        assert same >= 0.9 * NUM_JOBS
    assert server.engine.state == "ready"
