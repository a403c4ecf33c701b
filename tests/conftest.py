"""What all tests share: no test leaves a thread behind, and some run only with what they need."""

import gc
import importlib.util
import os
import pathlib
import subprocess
import sys
import threading
import time

import hypothesis
import pytest

# A slow machine is no fault.
hypothesis.settings.register_profile(
    "switchyard",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("switchyard")

ROOT = pathlib.Path(__file__).parent.parent
DEMO = str(ROOT / "models" / "demo")  # the embedded model, for tests that read what it says


def run_code(code):
    """In a Python of its own."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 20
    while left := [t for t in threading.enumerate() if t not in before and t.is_alive()]:
        if time.monotonic() > deadline:
            pytest.fail(f"threads left: {left}")
        left[0].join(0.1)


@pytest.fixture(scope="session", autouse=True)
def alarms_end_soon():
    """Their thread, for which each test that has set one waits at its end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("switchyard.engine.schedule.alarms.PURGE", 0.02)
        patch.setattr("switchyard.app.http.gate.QUIET", 0.02)
        patch.setattr("switchyard.engine.grammar.grammars.QUIET", 0.02)
        yield


@pytest.fixture(scope="session")
def model_path(tmp_path_factory):
    """A small random-weight model, made once a run."""
    path = tmp_path_factory.mktemp("models") / "tiny"
    script = ROOT / "scripts" / "make_model.py"
    subprocess.run([sys.executable, script, path], check=True)
    return str(path)


def pytest_addoption(parser):
    parser.addoption(
        "--schemas", type=int, default=60, help="random JSON schemas that outputs are checked by"
    )
    parser.addoption(
        "--draws", type=int, default=1500, help="of tokens, for each combination of settings"
    )
    parser.addoption("--histories", type=int, default=100, help="random answers that are sent back")
    parser.addoption(
        "--prompts", type=int, default=40, help="for which ExLlamaV2's generator is compared"
    )


def pytest_configure(config):
    """On a machine with GPUs, too, only tests marked `gpu` use them, if asked for by themselves."""
    if config.option.markexpr != "gpu":
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")


def pytest_collection_finish():
    """What is imported by now lives to the end: no collection needs to look at it."""
    gc.freeze()


def pytest_collection_modifyitems(config, items):
    """Skip what is marked `gpu` or `lm_eval` where there is none, what takes minutes, and what
    needs an environment of its own.
    """
    if config.option.markexpr != "hardship":
        for item in items:
            if item.get_closest_marker("hardship"):
                item.add_marker(pytest.mark.skip(reason="takes minutes: see -m hardship"))
    for mark in ("agents", "clients"):
        if config.option.markexpr != mark:
            for item in items:
                if item.get_closest_marker(mark):
                    item.add_marker(pytest.mark.skip(reason=f"large: see scripts/test-{mark}"))
    if importlib.util.find_spec("lm_eval") is None:
        for item in items:
            if item.get_closest_marker("lm_eval"):
                item.add_marker(pytest.mark.skip(reason="no lm_eval: see scripts/test-lm-eval"))
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_items:
        return
    import torch

    if not torch.cuda.is_available():
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason="no CUDA device, or no -m gpu"))
