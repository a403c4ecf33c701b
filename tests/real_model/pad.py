"""The same Llama with wider layers: EXL3's converter wants widths that are multiples of 128, and
SmolLM2 is 576 wide. Usage: python -m tests.real_model.pad MODEL_DIR TARGET

The new numbers are zeros, so they add nothing. A norm divides by the mean square of more numbers,
which its weights make up for.
"""

import json
import math
import shutil
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

WIDTH = 128


def up(size: int, width: int = WIDTH) -> int:
    return -(-size // width) * width


def main(source: str, target: str) -> None:
    root, new_root = Path(source), Path(target)
    config = json.loads((root / "config.json").read_text())
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    a_group = config["num_attention_heads"] // config["num_key_value_heads"]
    kv_heads = up(config["num_key_value_heads"] * head_dim) // head_dim
    keys, queries = kv_heads * head_dim, kv_heads * head_dim * a_group
    new_hidden = up(hidden, math.lcm(WIDTH, kv_heads * a_group))  # transformers divides it by heads
    assert queries == up(queries) and config["intermediate_size"] == up(config["intermediate_size"])
    sizes = {  # of a matrix: outputs, inputs
        "q_proj": (queries, new_hidden),
        "k_proj": (keys, new_hidden),
        "v_proj": (keys, new_hidden),
        "o_proj": (new_hidden, queries),
        "gate_proj": (config["intermediate_size"], new_hidden),
        "up_proj": (config["intermediate_size"], new_hidden),
        "down_proj": (new_hidden, config["intermediate_size"]),
        "embed_tokens": (config["vocab_size"], new_hidden),
        "lm_head": (config["vocab_size"], new_hidden),
    }
    share = hidden / new_hidden
    weights: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(root / "model.safetensors").items():
        if tensor.ndim == 1:
            tensor = (tensor.float() * math.sqrt(share)).half()
            weights[name] = F.pad(tensor, (0, new_hidden - hidden))
            continue
        rows, columns = sizes[name.split(".")[-2]]
        more = (0, columns - tensor.shape[1], 0, rows - tensor.shape[0])
        weights[name] = F.pad(tensor, more).contiguous()
    shutil.copytree(root, new_root, ignore=shutil.ignore_patterns("*.safetensors"))
    save_file(weights, new_root / "model.safetensors", {"format": "pt"})
    config |= {"hidden_size": new_hidden, "num_key_value_heads": kv_heads}
    config |= {"num_attention_heads": kv_heads * a_group}
    config["rms_norm_eps"] *= share
    (new_root / "config.json").write_text(json.dumps(config))


if __name__ == "__main__":
    main(*sys.argv[1:])
