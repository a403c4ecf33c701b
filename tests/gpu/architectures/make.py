"""Model directories of the specs: random weights in float16, and random EXL2 matrices in a twin."""

import json
import math
import shutil
import warnings
import zlib
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.gpu.architectures.specs import SPECS, Spec

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
TWIN = "-exl2"


def make(name: str, path: Path, tokenizer: Path) -> None:
    """`path`/config.json and weights; `path`/ref: where transformers reads them by other names."""
    spec = SPECS[name]
    path.mkdir(parents=True)
    for file in TOKENIZER:
        if (tokenizer / file).is_file():
            shutil.copy(tokenizer / file, path)
    for file, content in spec.files.items():
        (path / file).write_text(json.dumps(content))
    (path / "config.json").write_text(json.dumps(spec.config))
    if spec.refusal is not None:
        save_file({"none": torch.zeros(1)}, path / "model.safetensors")
        return
    tensors = _reference_tensors(name, spec, path)
    if spec.rename is not None or spec.reference is not None:
        named = spec.rename(tensors) if spec.rename else tensors
        save_file(named, path / "model.safetensors", metadata={"format": "pt"})


def _reference_tensors(name: str, spec: Spec, path: Path) -> dict[str, torch.Tensor]:
    from transformers import AutoConfig, AutoModelForCausalLM

    source = path / "ref" if spec.reference is not None or spec.rename is not None else path
    source.mkdir(exist_ok=True)
    (source / "config.json").write_text(json.dumps(spec.reference or spec.config))
    torch.manual_seed(0)
    with warnings.catch_warnings(action="ignore"):
        config = AutoConfig.from_pretrained(source)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    fill(model, name)
    scratch = path / "scratch"
    model.half().save_pretrained(scratch)
    tensors = {
        key: value.contiguous()
        for file in scratch.glob("*.safetensors")
        for key, value in load_file(file).items()
    }
    shutil.rmtree(scratch)
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    return tensors


@torch.no_grad()
def fill(model, name):
    """With weights of which attention is far from uniform, and logits far from each other."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    kind = model.config.model_type
    is_gemma = kind.startswith("gemma")
    is_tied = bool(getattr(model.config, "tie_word_embeddings", False))
    embedding = 0.08 if is_tied else 0.5
    embedding = 0.006 if is_gemma else 0.01 if kind == "granite" and is_tied else embedding
    modules = list(model.modules())
    transposed = {id(m.weight) for m in modules if type(m).__name__ == "Conv1D"}
    embeddings = {id(m.weight) for m in modules if isinstance(m, torch.nn.Embedding)}
    for key, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if id(weight) in embeddings:
            weight.copy_(noise * (0.1 if "wpe" in key else embedding))
        elif weight.ndim == 1 and key.endswith("bias"):
            weight.copy_(noise * 0.2)
        elif weight.ndim == 1 or "norm" in key:
            weight.copy_(noise * 0.2 + (0.0 if is_gemma else 1.0))
        else:
            fan_in = weight.shape[2 if weight.ndim == 3 else 1]
            if id(weight) in transposed:
                fan_in = weight.shape[0]
            elif key.endswith("experts.mlp.w2"):  # applied transposed
                fan_in = len(weight) // 4
            is_query = any(part in key for part in ("q_proj", "k_proj", "qkv", "c_attn"))
            gain = 2.0 if key.startswith("lm_head") else 1.3 if is_query else 1.2
            if weight.ndim == 3 or "experts.mlp" in key:
                # Alike, so that rounding that tips a choice of experts over costs little.
                num_experts = len(weight) if weight.ndim == 3 else 4
                each = noise.view(num_experts, -1, weight.shape[-1])
                shared = torch.randn(each.shape[1:], generator=generator)
                each.mul_(0.5).add_(shared * 0.87)
            weight.copy_(noise * gain / math.sqrt(fan_in))


def make_twin(source: Path, target: Path) -> None:
    """Random EXL2 in place of each matrix that exllamav2 would convert."""
    from exllamav2 import ExLlamaV2, ExLlamaV2Config
    from exllamav2.linear import ExLlamaV2Linear
    from exllamav2.stloader import cleanup_stfiles

    target.mkdir()
    config = ExLlamaV2Config(str(source))
    model = ExLlamaV2(config)
    generator = torch.Generator().manual_seed(zlib.crc32(source.name.encode()))
    parts = [part for module in model.modules for part in (module, *module.submodules)]
    linears = {
        part.key: part
        for part in parts
        if isinstance(part, ExLlamaV2Linear) and not part.key.endswith(("_moe.gate", ".mlp.gate"))
    }
    gone = {key for part in linears.values() for key in (part.key, part.f_key) if key}
    found = {}
    for key, value in load_file(source / "model.safetensors").items():
        for old, new in config.arch.keymap or ():
            if not old.startswith("$"):
                key = key.replace(old, new)
            elif key.startswith(old[1:]):
                key = f"${key}".replace(old, new)
        if key.removesuffix(".weight").removesuffix(".bias") not in gone:
            found[key] = value.contiguous()
    for key, part in linears.items():
        is_head = key.endswith("lm_head")
        gain = 2.0 if is_head else 1.3 if key.endswith(("q_proj", "k_proj")) else 1.2
        std = gain / math.sqrt(part.in_features)
        if is_head and config.arch.lm.normalize_embeddings:
            std = 0.05
        matrix = _exl2(part.in_features, part.out_features, 6 if is_head else 4, std, generator)
        found.update({f"{key}.{name}": value for name, value in matrix.items()})
        if part.has_bias:
            bias = torch.randn(part.out_features, generator=generator) * 0.2
            found[f"{key}.bias"] = bias.half()
    save_file(found, target / "output.safetensors", metadata={"format": "pt"})
    for file in source.glob("*.json"):
        shutil.copy(file, target)
    told = json.loads((source / "config.json").read_text())
    told["quantization_config"] = {"quant_method": "exl2", "version": "0.3.2", "bits": 4.0}
    (target / "config.json").write_text(json.dumps(told))
    cleanup_stfiles()


def _exl2(rows, columns, bits, std, generator):
    groups, center = rows // 128, {4: 4.6, 6: 18.5}[bits]
    words = (rows * bits // 32, columns)
    return {
        "q_weight": torch.randint(
            -(2**31), 2**31 - 1, words, dtype=torch.int32, generator=generator
        ),
        "q_groups": torch.tensor(
            [value for group in range(groups) for value in (bits, group * 4 * bits)],
            dtype=torch.int16,
        ),
        "q_invperm": torch.randperm(rows, generator=generator).int(),
        "q_scale": torch.full((groups, columns // 8), -0x55555556, dtype=torch.int32),
        "q_scale_max": torch.full((groups,), std / center * 256 / 121).half(),
    }
