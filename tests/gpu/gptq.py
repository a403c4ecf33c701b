"""A GPTQ model out of a float16 one, rounded to the nearest; and what it says in float16 again."""

import json
import pathlib
import shutil

import torch
from safetensors.torch import load_file, save_file

GROUP = 32
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
CONFIG = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True}


def make_gptq(source, directory):
    """Paths of the GPTQ model, and of the float16 model with the same numbers."""
    quantized = pathlib.Path(shutil.copytree(source, directory / "gptq"))
    rounded = pathlib.Path(shutil.copytree(source, directory / "float16"))
    weights = load_file(quantized / "model.safetensors")
    packed, plain = {}, {}
    for name, weight in weights.items():
        key = name.removesuffix(".weight")
        if key.rpartition(".")[2] in LINEAR:
            tensors = pack(weight)
            packed |= {f"{key}.{part}": tensor for part, tensor in tensors.items()}
            plain[name] = unpack(tensors)
        else:
            packed[name] = plain[name] = weight
    save_file(packed, quantized / "model.safetensors")
    save_file(plain, rounded / "model.safetensors")
    config = json.loads((quantized / "config.json").read_text())
    (quantized / "config.json").write_text(json.dumps(config | {"quantization_config": CONFIG}))
    return str(quantized), str(rounded)


def pack(weight):
    """(out, in) float16 -> GPTQ's tensors: eight numbers of four bits in each of 32."""
    rows = weight.float().t().reshape(-1, GROUP, weight.shape[0])  # (groups, GROUP, out)
    scales = (rows.abs().amax(1) / 7).clamp(min=1e-6).half()
    numbers = (rows / scales.float()[:, None]).round().clamp(-8, 7).long() + 8
    zeros = torch.full((scales.shape[0], weight.shape[0] // 8), 0x77777777, dtype=torch.int32)
    return {
        "qweight": _packed(numbers.reshape(-1, 8, weight.shape[0])),
        "qzeros": zeros,  # 8, less one
        "scales": scales,
    }


def unpack(tensors):
    """The weight, (out, in) float16, of which GPTQ's tensors speak."""
    shifts = torch.arange(0, 32, 4)[None, :, None]
    numbers = (tensors["qweight"].long()[:, None] >> shifts) & 15
    numbers = numbers.reshape(-1, numbers.shape[-1])
    scales = tensors["scales"].float().repeat_interleave(GROUP, 0)
    return ((numbers - 8) * scales).half().t().contiguous()


def _packed(numbers):
    """(rows, 8, out) -> (rows, out), the first in the lowest bits."""
    shifts = torch.arange(0, 32, 4)[None, :, None]
    summed = (numbers << shifts).sum(1)
    return torch.where(summed >= 2**31, summed - 2**32, summed).int()
