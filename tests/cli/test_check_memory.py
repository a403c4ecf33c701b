"""What `switchyard check` says of memory: as the loader would."""

import json
import shutil
from dataclasses import replace

import pytest

from switchyard import engine
from switchyard.cli import check as CHECK
from switchyard.engine.config import ModelConfig
from switchyard.engine.memory import gpus, host
from switchyard.engine.memory.estimate import CONTEXT, GIB, Memory
from switchyard.engine.memory.gpus import Gpu
from switchyard.engine.memory.residency import check_host, needed
from switchyard.engine.memory.together import Together
from switchyard.engine.model.footprint import measure
from tests.conftest import DEMO

DEMO_EXL2 = f"{DEMO}-exl2"


def tables(directory, *models, more=""):
    """Settings of (name, path, load, cache_tokens)."""
    form = '[[models]]\nname = "{}"\nmodel = "{}"\nload = "{}"\ncache_tokens = {}\n'
    text = "".join(form.format(*model) + more for model in models)
    (directory / "switchyard.toml").write_text(text)


@pytest.fixture
def check(switchyard, monkeypatch):
    """On a machine with a GPU that has so many GiB free."""

    def check(free, status, *arguments):
        for module in (CHECK, gpus):
            monkeypatch.setattr(module, "has_gpu", lambda: True)
        gpu = Gpu("A GPU", (9, 0), 24 * GIB, int(free * GIB), "570.1")
        for name in ("gpus", "visible"):
            monkeypatch.setattr(gpus, name, lambda: [gpu])
        return switchyard.told(status, "check", *arguments)

    return check


@pytest.mark.parametrize(
    ("settings", "status", "says"),
    [
        (["cache_tokens=4096"], 0, "demo-exl2: there is room for 4096 tokens of float16 cache"),
        (["cache_tokens=4096", "cache_mode=Q8,Q4"], 0, "4096 tokens of Q8 cache"),
        (["gpus=0"], 0, "✓ memory"),
        (["gpus=0,1"], 1, "✗ model: demo-exl2: gpus names 1, but this process sees 1"),
        (["replicas=2"], 1, "1 GPUs can't be divided equally among 2 replicas"),
    ],
)
def test_check_says_what_fits_and_which_gpus_there_are_not(check, settings, status, says):
    given = [part for setting in settings for part in ("--set", setting)]
    assert says in check(20, status, DEMO_EXL2, *given)


def test_check_says_that_there_is_no_room_in_the_loaders_words(check):
    output = check(1, 1, DEMO_EXL2, "--set", "cache_tokens=4096")
    with pytest.raises(engine.ModelError) as refusal:
        config = ModelConfig(DEMO_EXL2, "name", cache_tokens=4096)
        Memory(config, measure(config)[0], [GIB - CONTEXT], 2048).caches()
    assert f"✗ memory: demo-exl2: {refusal.value}" in output
    assert "memory" not in check(1, 0, DEMO, "--set", "device=cpu")


def test_check_says_which_model_the_hosts_memory_lacks_room_for(switchyard, monkeypatch, tmp_path):
    monkeypatch.setattr(host, "free_memory", lambda: GIB)
    tables(tmp_path, ("one", DEMO, "demand", 512), ("two", DEMO, "demand", 256_000_000))
    findings = json.loads(switchyard.told(1, "check", "--json"))
    [finding] = [one for one in findings if not one["is_good"]]
    with pytest.raises(engine.NoRoom) as refusal:
        check_host(ModelConfig(DEMO, "two", cache_tokens=256_000_000))
    assert (finding["what"], finding["message"]) == ("memory", f"two: {refusal.value}")


@pytest.mark.parametrize(
    ("loads", "without"),
    [
        (("start", "start"), "two"),
        (("start", "demand"), "two"),
        (("demand", "start"), "one"),
        (("demand", "manual"), None),
    ],
)
def test_check_adds_up_the_models_that_stay(check, tmp_path, loads, without):
    tables(tmp_path, ("one", DEMO_EXL2, loads[0], 2048), ("two", DEMO_EXL2, loads[1], 2048))
    config = ModelConfig(DEMO_EXL2, "name", cache_tokens=2048)
    footprints, _ = measure(config)
    [size] = Memory(config, footprints, [24 * GIB], 2048).place("float16", 2048)
    reserve = int(config.gpu_reserve * GIB)
    both = 2 * (CONTEXT + size) + reserve
    check(both / GIB, 0)
    output = check((both - 1) / GIB, int(without is not None))
    other = {"one": "two", "two": "one", None: None}[without]
    assert (f"✗ memory: {without}: no room for the model" in output) == (without is not None)
    assert (f", beside {other}\n" in output) == (without is not None)


def test_check_adds_up_the_models_that_stay_in_the_hosts_memory(switchyard, monkeypatch, tmp_path):
    models = [(name, DEMO, "start", 2048) for name in ("one", "two")]
    tables(tmp_path, *models, more='link = "thread"\n')
    whole = needed(ModelConfig(DEMO, "one", link="thread", cache_tokens=2048))["host"]
    monkeypatch.setattr(host, "free_memory", lambda: 2 * whole)
    switchyard.told(0, "check")
    monkeypatch.setattr(host, "free_memory", lambda: 2 * whole - 1)
    output = switchyard.told(1, "check")
    assert "✗ memory: two: no room" in output and ", beside one\n" in output


def test_the_cache_of_different_replicas_is_that_of_the_smallest(monkeypatch):
    there = [Gpu("A GPU", (9, 0), 80 * GIB, int(free * GIB), "570.1") for free in (1.3, 20)]
    monkeypatch.setattr(gpus, "visible", lambda: there)
    config = ModelConfig(DEMO_EXL2, "demo", "cuda", cache_tokens="auto", replicas=2)
    footprints, _ = measure(config)
    caches = [
        Together().on_gpus(replace(config, replicas=1, gpus=(i,)), footprints, 2048, False)
        for i in range(2)
    ]
    assert 0 < caches[0][1] < caches[1][1]
    assert Together().on_gpus(config, footprints, 2048, False) == caches[0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([DEMO_EXL2], "the weights are quantized: only a CUDA device can serve them"),
        ([DEMO, "--set", f"draft_model={DEMO_EXL2}"], "✗ model: demo: the weights are quantized"),
        ([DEMO, "--set", 'cache_mode=["Q8"]'], "✗ model: demo: cache_mode needs a GPU"),
    ],
)
def test_check_finds_what_only_a_gpu_can_serve(check, switchyard, arguments, says):
    assert says in switchyard.told(1, "check", *arguments)
    assert "✗" not in check(20, 0, *arguments)


def test_check_finds_a_download_that_was_cut_off(check, tmp_path):
    path = shutil.copytree(DEMO_EXL2, tmp_path / "model")
    file = path / "output.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    output = check(20, 1, path)
    assert "✗ model" in output and "it is cut off" in output
