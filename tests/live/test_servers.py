"""How the server starts and refuses to: gunicorn, its alternatives, the scripts."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import requests

from switchyard.engine.memory.gpus import has_gpu
from tests.faults.conftest import SCRIPTED, worker_of
from tests.live.conftest import FLASK, GUNICORN, ROOT, WAITRESS

SERVE = [str(ROOT / "scripts" / "serve")]


@pytest.mark.parametrize("command", [FLASK, WAITRESS], ids=["flask run", "waitress"])
def test_other_servers_work_for_development(start, command):
    server = start(command).wait_until_ready()
    body = {"prompt": "Hello", "max_tokens": 3, "temperature": 0}
    text = server.post("/v1/completions", body).json()["choices"][0]["text"]
    with server.post("/v1/completions", {**body, "stream": True}, stream=True) as response:
        lines = [line[6:] for line in response.iter_lines() if line]
    assert lines.pop() == b"[DONE]"
    assert "".join(json.loads(line)["choices"][0]["text"] for line in lines) == text


def test_scripts_serve_works_from_any_directory_and_says_where(start, model_path, tmp_path):
    server = start(SERVE, model=os.path.relpath(model_path, tmp_path)).wait_until_ready()
    assert server.post("/v1/completions", {"prompt": "x", "max_tokens": 1}).status_code == 200
    deadline = time.monotonic() + 20
    while "curl" not in server.output and time.monotonic() < deadline:
        time.sleep(0.02)
    assert f"Switchyard serves tiny at {server.url}" in server.output
    assert f"curl -N {server.url}/v1/completions" in server.output


def test_a_model_directory_is_an_argument_too(start, model_path):
    server = start([*SERVE, model_path], model="/nowhere").wait_until_ready()
    assert requests.get(f"{server.url}/v1/models", timeout=10).json()["data"][0]["id"] == "tiny"


def refusal(server, timeout=60):
    """The exit status and what the server printed, except for gunicorn's own lines."""
    status = server.process.wait(timeout)
    lines = [line for line in server.output.splitlines() if not line.startswith("[")]
    return status, "\n".join(lines)


@pytest.mark.parametrize(
    ("more", "settings", "message"),
    [
        (["--workers", "2"], {}, "one worker only"),
        (["--preload"], {}, "preload is not supported"),
        (["--worker-class", "sync", "--threads", "1"], {}, "only with its own worker class"),
        ([], {"model": "/no/such/model"}, "/no/such/model does not exist"),
        ([], {"cache_tokens": 1000}, "cache_tokens must be a multiple of 256"),
        ([], {"max_pendng": 1}, "SWITCHYARD_MAX_PENDNG"),
        ([], {"device": "cuda"}, "device 'cuda'"),
        ([], {"max_seq_len": 999_999}, "max_seq_len 999999: the model was made for 2048"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_start_that_cannot_work_ends_with_one_clear_line(start, more, settings, message):
    if settings.get("device") == "cuda" and has_gpu():
        pytest.skip("there is a CUDA device")
    status, output = refusal(start([*GUNICORN, *more], **settings))
    assert status != 0
    assert message in output
    assert "Traceback" not in output


def test_a_concurrency_from_the_environment_is_refused(start, monkeypatch):
    monkeypatch.setenv("WEB_CONCURRENCY", "4")
    status, output = refusal(start())
    assert status != 0 and "one worker only" in output


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("config.json", {"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM"),
        ("config.json", {"quantization_config": {"quant_method": "exl2"}}, "quantized"),
        ("config.json", {"hidden_size": 512}, "config.json requires (4096, 512)"),
        ("config.json", {"max_position_embeddings": 128}, "a context of 128 tokens is less than"),
        ("tokenizer.json", {}, "tokenizer.json"),
        ("model.safetensors", None, "model.safetensors can't be read"),
    ],
    ids=["architecture", "quantised", "shape", "context", "tokenizer", "weights"],
)
def test_a_model_that_cannot_be_loaded_ends_the_server_with_one_clear_line(
    start, model_path, tmp_path, name, change, message
):
    if has_gpu() and change and change.keys() & {"hidden_size", "quantization_config"}:
        pytest.skip("the CPU's own loader says so")
    path = shutil.copytree(model_path, tmp_path / "model")
    if change is None:
        (path / name).write_bytes(b"no weights")
    else:
        content = json.loads((path / name).read_text()) if change else {}
        (path / name).write_text(json.dumps({**content, **change}))
    status, output = refusal(start(model=path))
    assert status == 3  # systemd's unit doesn't start it again
    [line] = [line for line in output.splitlines() if message in line]
    assert line.startswith("switchyard: ") or "ERROR" in line
    assert "Traceback" not in output


def test_a_body_of_very_many_values_does_not_set_off_as_many_collections(model_path, tmp_path):
    code = (
        "import gc; from switchyard.server import wsgi;"
        "wsgi.models.wait_until_loaded(); print(gc.get_threshold()[0])"
    )
    environment = {**os.environ, "SWITCHYARD_MODEL": model_path, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert int(result.stdout.split()[-1]) >= 50_000, result.stderr


def test_a_signal_for_more_workers_is_refused(start):
    server = start(SCRIPTED).wait_until_ready()
    worker = worker_of(server)
    for number in (1, 2):  # once the second is answered, the first has had its effect
        server.process.send_signal(signal.SIGTTIN)
        deadline = time.monotonic() + 20
        while server.output.count("one worker only") < number:
            assert time.monotonic() < deadline, server.output
            time.sleep(0.02)
    assert worker_of(server) == worker
    assert server.stop() == 0
