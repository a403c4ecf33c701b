#!/usr/bin/env python3
"""How much longer does a start take with a large vocabulary, and how much more memory?

    python benchmarks/start.py TOKENIZER_DIR ... [--rounds 3] [--root CHECKOUT]

TOKENIZER_DIR has a tokenizer.json and a tokenizer_config.json. Each gets a model of two layers with
random weights, and so does the demo's tokenizer. A server of each starts in turns, on the CPU.
`ready`: seconds until /health/ready is good. `cpu`: seconds of a core until then, which say more on
a busy machine. `memory`: resident size of the server's worker then, without its weights in float32.
Medians; ratios and differences are to the demo. `--root`: another checkout, for its server.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.report import header  # noqa: E402

DEMO = ROOT / "models" / "demo"
HIDDEN, INTERMEDIATE, LAYERS, HEAD = 128, 256, 2, 64
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def make_model(tokenizer, target):
    """Returns the bytes of the weights in float32."""
    import torch
    from safetensors.torch import save_file

    target.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, target / name)
    spec = json.loads((target / "tokenizer.json").read_text())
    ids = [token["id"] for token in spec["added_tokens"]]
    size = -(-max(len(spec["model"]["vocab"]), max(ids, default=0) + 1) // 32) * 32
    config = {
        **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu"},
        **{"hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE, "num_hidden_layers": LAYERS},
        **{"num_attention_heads": HIDDEN // HEAD, "num_key_value_heads": 1, "head_dim": HEAD},
        **{"vocab_size": size, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5},
        **{"rope_theta": 10000.0, "tie_word_embeddings": False},
    }
    (target / "config.json").write_text(json.dumps(config))
    shapes = {"model.embed_tokens": (size, HIDDEN), "lm_head": (size, HIDDEN)}
    norms = ["model.norm"]
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        norms += [f"{at}.input_layernorm", f"{at}.post_attention_layernorm"]
        for name, rows in (("q", HIDDEN), ("k", HEAD), ("v", HEAD), ("o", HIDDEN)):
            shapes[f"{at}.self_attn.{name}_proj"] = (rows, HIDDEN)
        for name in ("gate", "up"):
            shapes[f"{at}.mlp.{name}_proj"] = (INTERMEDIATE, HIDDEN)
        shapes[f"{at}.mlp.down_proj"] = (HIDDEN, INTERMEDIATE)
    tensors = {f"{name}.weight": torch.randn(shape) * 0.05 for name, shape in shapes.items()}
    tensors |= {f"{name}.weight": torch.ones(HIDDEN) for name in norms}
    save_file(
        {name: one.half() for name, one in tensors.items()},
        target / "model.safetensors",
        {"format": "pt"},
    )
    return sum(one.numel() * 4 for one in tensors.values())


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def usage(pid):
    """Seconds of a core, and resident bytes, of a process."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    pages = pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]
    return (int(fields[11]) + int(fields[12])) / TICKS, int(pages) * PAGE


def measure(model, root):
    """(seconds, seconds of a core, resident bytes) of one start."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    settings = {
        "SWITCHYARD_MODEL": str(model),
        "SWITCHYARD_BIND": f"127.0.0.1:{port}",
        "SWITCHYARD_DEVICE": "cpu",
        "SWITCHYARD_LOG_LEVEL": "ERROR",
    }
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SWITCHYARD_")}
    command = [sys.executable, "-m", "gunicorn", "-c", "gunicorn.conf.py"]
    begin = time.monotonic()
    process = subprocess.Popen(
        command, cwd=root, env={**environment, **settings}, stdout=subprocess.DEVNULL
    )
    try:
        while True:
            if process.poll() is not None:
                raise SystemExit(f"{model}: the server has ended with status {process.returncode}")
            try:
                urllib.request.urlopen(f"{url}/health/ready", timeout=5).close()
                break
            except OSError:
                time.sleep(0.05)
        seconds = time.monotonic() - begin
        used = [usage(pid) for pid in (process.pid, *children(process.pid))]
        return seconds, sum(cpu for cpu, _ in used), max(size for _, size in used)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tokenizers", nargs="+", type=pathlib.Path, metavar="TOKENIZER_DIR")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--root", type=pathlib.Path, default=ROOT)
    args = parser.parse_args()
    header()
    with tempfile.TemporaryDirectory() as directory:
        weights, runs = {}, {}
        for i, tokenizer in enumerate([DEMO, *args.tokenizers]):
            model = pathlib.Path(directory, f"model-{i}")
            weights[model], runs[model] = make_model(tokenizer, model), []
        for _ in range(args.rounds):
            for model, told in runs.items():
                told.append(measure(model, args.root))
        base = None
        for tokenizer, (model, told) in zip([DEMO, *args.tokenizers], runs.items(), strict=True):
            ready, cpu, size = map(statistics.median, zip(*told, strict=True))
            size = (size - weights[model]) / 1e6
            base = base or (ready, cpu, size)
            print(
                f"{tokenizer}: ready {ready:.1f} s ({ready / base[0]:.2f} times), cpu {cpu:.1f} s"
                f" ({cpu / base[1]:.2f} times), memory {size:.0f} MB ({size - base[2]:+.0f} MB)"
            )


if __name__ == "__main__":
    main()
