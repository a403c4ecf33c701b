"""How the server starts and refuses to: gunicorn, its alternatives, the scripts."""

import json
import os
import shutil
import signal

import pytest

from switchyard.engine.memory.gpus import has_gpu
from tests.faults.conftest import SCRIPTED, worker_of
from tests.faults.websockets import HANDSHAKE, Client
from tests.live.conftest import FLASK, GUNICORN, ROOT, WAITRESS


@pytest.mark.parametrize(
    ("command", "has_sockets"), [(FLASK, True), (WAITRESS, False)], ids=["flask run", "waitress"]
)
def test_other_servers_work_for_development(start, command, has_sockets):
    server = start(command).wait_until_ready()
    body = {"prompt": "Hello", "max_tokens": 3, "temperature": 0}
    text = server.post("/v1/completions", body).json()["choices"][0]["text"]
    *bodies, done = server.begin(**body)
    assert "".join(json.loads(body)["choices"][0]["text"] for body in bodies) == text
    assert done == b"[DONE]"
    if not has_sockets:  # it passes no Connection header on, so there it is no handshake at all
        assert server.get("/v1/stream", headers=HANDSHAKE).status_code in (400, 501)
        return
    for _ in range(2):
        client = Client(server)
        client.send("generate", 1, prompt="x", max_tokens=3)
        assert client.until(1, "end")
        client.close()


def test_scripts_serve_takes_a_model_from_any_directory_and_says_where(start, model_path, tmp_path):
    command = [str(ROOT / "scripts" / "serve"), os.path.relpath(model_path, tmp_path)]
    server = start(command, model="/nowhere").wait_until_ready()
    assert server.post("/v1/completions", {"prompt": "x", "max_tokens": 1}).status_code == 200
    server.wait_to_say(f"curl -N {server.url}/v1/completions")
    assert f"Switchyard serves tiny at {server.url}" in server.output


def refusal(server):
    """The exit status and what the server printed, except for gunicorn's own lines."""
    status = server.process.wait(60)
    assert "Traceback" not in server.output
    return status, [line for line in server.output.splitlines() if not line.startswith("[")]


@pytest.mark.parametrize(
    ("more", "settings", "message"),
    [
        (["--workers", "2"], {}, "only one worker"),
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
    status, lines = refusal(start([*GUNICORN, *more], **settings))
    assert status != 0 and message in "\n".join(lines)


def test_a_concurrency_from_the_environment_is_refused(start, monkeypatch):
    monkeypatch.setenv("WEB_CONCURRENCY", "4")
    status, lines = refusal(start())
    assert status != 0 and "only one worker" in "\n".join(lines)


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
    server = start(model=path)
    status, lines = refusal(server)
    assert status == 3  # systemd's unit doesn't start it again
    [line] = [line for line in lines if message in line]
    is_found_late = name == "config.json"
    assert line.startswith("switchyard: ") or (is_found_late and "ERROR" in line)
    assert is_found_late or "ERROR" not in server.output
    assert "failed to boot" not in server.output


def test_a_signal_for_more_workers_is_refused(start):
    server = start(SCRIPTED).wait_until_ready()
    worker = worker_of(server)
    for number in (1, 2):  # once the second is answered, the first has had its effect
        server.process.send_signal(signal.SIGTTIN)
        server.wait_for(lambda n=number: server.output.count("only one worker") == n)
    assert worker_of(server) == worker
    assert server.stop() == 0
