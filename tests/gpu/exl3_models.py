"""EXL3 models of random weights, of 4 bits, and the same weights in transformers' models."""

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.conftest import DEMO

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 1024, 2816, 4, 16, 4, 64, 2048
GEMMA = "Gemma3ForConditionalGeneration"
FAMILIES = ("LlamaForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM", "Phi3ForCausalLM", GEMMA)
NORMS = {
    "Qwen3ForCausalLM": ("self_attn.q_norm", "self_attn.k_norm"),
    GEMMA: (
        *("self_attn.q_norm", "self_attn.k_norm"),
        *("pre_feedforward_layernorm", "post_feedforward_layernorm"),
    ),
}
FUSED = {  # of Phi 3 in transformers
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}
CONFIG = {
    **{"hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS},
    **{"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM},
    **{"vocab_size": VOCABULARY, "rms_norm_eps": 1e-5, "rope_theta": 1e4},
    **{"max_position_embeddings": 4096, "tie_word_embeddings": False, "pad_token_id": 0},
}
SLIDING = {"sliding_window": 512, "sliding_window_pattern": 2, "query_pre_attn_scalar": HEAD_DIM}


def matrices(prefix: str) -> Iterator[tuple[str, int, int]]:
    """Name, inputs and outputs of a layer's."""
    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    yield f"{prefix}.self_attn.q_proj", HIDDEN, queries
    yield f"{prefix}.self_attn.k_proj", HIDDEN, keys
    yield f"{prefix}.self_attn.v_proj", HIDDEN, keys
    yield f"{prefix}.self_attn.o_proj", queries, HIDDEN
    yield f"{prefix}.mlp.gate_proj", HIDDEN, INNER
    yield f"{prefix}.mlp.up_proj", HIDDEN, INNER
    yield f"{prefix}.mlp.down_proj", INNER, HIDDEN


def write(path: pathlib.Path, family: str) -> None:
    """Norms scale by one: Gemma's add one to their weights."""
    torch.manual_seed(0)
    tensors: dict[str, torch.Tensor] = {}
    norm = torch.zeros if family == GEMMA else torch.ones
    root = "language_model." if family == GEMMA else ""

    def quantized(name: str, num_in: int, num_out: int) -> None:
        shape = (num_in // 16, num_out // 16, 64)
        tensors[f"{name}.trellis"] = torch.randint(-(2**15), 2**15, shape, dtype=torch.int16)
        tensors[f"{name}.suh"] = (torch.randint(0, 2, (num_in,)) * 2 - 1).half()
        tensors[f"{name}.svh"] = ((torch.randint(0, 2, (num_out,)) * 2 - 1) * 0.02).half()

    tensors[f"{root}model.embed_tokens.weight"] = (torch.randn(VOCABULARY, HIDDEN) * 0.1).half()
    tensors[f"{root}model.norm.weight"] = norm(HIDDEN).half()
    quantized(f"{root}lm_head", HIDDEN, VOCABULARY)
    for i in range(LAYERS):
        prefix = f"{root}model.layers.{i}"
        for name in ("input_layernorm", "post_attention_layernorm", *NORMS.get(family, ())):
            size = HEAD_DIM if name.startswith("self_attn") else HIDDEN
            tensors[f"{prefix}.{name}.weight"] = norm(size).half()
        for matrix in matrices(prefix):
            quantized(*matrix)
    save_file(tensors, path / "model.safetensors")
    quantization = {"quant_method": "exl3", "version": "1.6.5", "bits": 4.0}
    config: dict[str, Any] = {"architectures": [family], "quantization_config": quantization}
    if family == GEMMA:
        vision = {"hidden_size": 64, "num_attention_heads": 4, "patch_size": 14}
        vision |= {"intermediate_size": 128, "num_channels": 3, "num_hidden_layers": 1}
        config |= {"text_config": {**CONFIG, **SLIDING}, "vision_config": vision}
        config |= {"mm_tokens_per_image": 256, "sliding_window_pattern": 2}
        told = {"image_mean": [0.5], "image_std": [0.5], "resample": 2, "rescale_factor": 1 / 255}
        told |= {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 896}}
        (path / "preprocessor_config.json").write_text(json.dumps(told))
    else:
        config |= {**CONFIG, "hidden_act": "silu", "original_max_position_embeddings": 4096}
    (path / "config.json").write_text(json.dumps(config))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (path / file).write_bytes(pathlib.Path(DEMO, file).read_bytes())


def in_transformers(path: str, library: Any) -> torch.nn.Module:
    """transformers' model of the same weights, float32. `library`: exllamav3's model, loaded."""
    import transformers

    family = json.loads(pathlib.Path(path, "config.json").read_text())["architectures"][0]
    if family == GEMMA:
        kinds = ["sliding_attention" if (i + 1) % 2 else "full_attention" for i in range(LAYERS)]
        ropes = {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "default", "rope_theta": 1e4},
        }
        more = {"layer_types": kinds, "rope_parameters": ropes, "sliding_window": 512}
        more |= {"query_pre_attn_scalar": HEAD_DIM}
        config = transformers.Gemma3TextConfig(**CONFIG | more)
        model = transformers.Gemma3ForCausalLM(config)
    else:
        name = family.removesuffix("ForCausalLM")
        more = {"sliding_window": None} if name == "Mistral" else {}
        config = getattr(transformers, f"{name}Config")(**CONFIG, **more)
        model = getattr(transformers, family)(config)
    weights = {
        name.removeprefix("language_model."): tensor.float()
        for name, tensor in load_file(f"{path}/model.safetensors").items()
        if name.endswith(".weight")
    }
    for module in library:
        if type(module).__name__ == "Linear":
            name = module.key.removeprefix("language_model.")
            weights[f"{name}.weight"] = module.inner.get_weight_tensor().float().T.cpu()
    if family == "Phi3ForCausalLM":
        for i in range(LAYERS):
            for fused, parts in FUSED.items():
                found = [weights.pop(f"model.layers.{i}.{part}.weight") for part in parts]
                weights[f"model.layers.{i}.{fused}.weight"] = torch.cat(found)
    model.load_state_dict(weights, strict=True)
    return model.float().cuda().eval()
