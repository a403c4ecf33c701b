"""Two models of one server on one GPU: swaps both ways, a refusal with its sums, and memory."""

import json

import pytest
import torch

from tests.conftest import DEMO, make_model
from tests.gpu.conftest import LARGER
from tests.live.conftest import GUNICORN, Server
from tests.live.test_several_models import PROMPTS, ask

pytestmark = pytest.mark.gpu

TOKEN = 12 * 2 * 4 * 64 * 2  # bytes of the larger model's cache


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A server of the demo model and a larger one; another of its shape is in `models_dir`."""
    path = tmp_path_factory.mktemp("several")
    for seed, name in enumerate(("one", "other")):
        sizes = (*LARGER, "--num-layers", "12", "--seed", str(seed))
        make_model(str(path / "models" / name), *sizes)
    (path / "switchyard.toml").write_text(f"""
        models_dir = "{path}/models"
        device = "cuda"

        [[models]]
        name = "demo"
        model = "{DEMO}"

        [[models]]
        name = "larger"
        model = "{path}/models/one"
    """)
    server = Server(GUNICORN, path, config=path / "switchyard.toml")
    yield server.wait_until_ready()
    assert server.stop() == 0, server.output


def load(server, **body):
    """Status, and the last event of the answer, or the body of an error."""
    response = server.post("/admin/models/larger", body)
    last = response.text.strip().split("\n\n")[-1].removeprefix("data: ")
    return response.status_code, json.loads(last)


def texts(server, model):
    """A fingerprint, and texts of all prompts."""
    found = [ask(server, model, prompt) for prompt in PROMPTS]
    [fingerprint] = {one for one, _ in found}
    return fingerprint, [text for _, text in found]


def test_swaps_beside_and_by_a_drain_on_one_gpu(pair):
    demo, one = texts(pair, "demo"), texts(pair, "larger")
    assert demo[0] != one[0] and demo[1] != one[1]
    # More than half of the GPU, so that the next has no room beside it.
    most = int(torch.cuda.mem_get_info()[1] * 0.6) // TOKEN // 256 * 256
    found = []
    for model, tokens in (("other", 16384), ("one", most), ("other", most), ("one", 16384)):
        status, told = load(pair, model=model, cache_tokens=tokens)
        assert status == 200 and told["status"] == "loaded", told
        found.append((told["way"], texts(pair, "larger")))
        assert texts(pair, "demo") == demo
    ways, swapped = zip(*found, strict=True)
    assert ways == ("beside", "beside", "drain", "beside")
    other = swapped[0]
    assert swapped == (other, one, other, one) and other[0] != one[0] and other[1] != one[1]


def test_what_has_no_room_is_refused_with_its_sums(pair):
    before = texts(pair, "larger")
    tokens = torch.cuda.mem_get_info()[1] * 2 // TOKEN // 256 * 256
    status, told = load(pair, cache_tokens=tokens)
    print(told)
    assert status == 409 and told["error"]["code"] == "no_memory"
    assert told["error"]["message"].count("GiB") >= 2
    assert texts(pair, "larger") == before
