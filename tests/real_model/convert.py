"""Make a Hugging Face directory of a GGUF file: Llama's layers, GPT-2's kind of tokenizer, float16.

Usage: python -m tests.real_model.convert MODEL.gguf DIR
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.numpy import save_file

# Names of tensors, in layers and outside.
IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTSIDE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
CONTROL, USER_DEFINED = 3, 4  # types of tokens that are matched before all others


class Fields:
    """The metadata of a GGUF file."""

    def __init__(self, reader: GGUFReader) -> None:
        self._fields = reader.fields

    def __call__(self, name: str, default: Any = None) -> Any:
        found = self._fields.get(name)
        return default if found is None else found.contents()


def name_of(tensor: str) -> str:
    if tensor in OUTSIDE:
        return OUTSIDE[tensor]
    _, layer, part, kind = tensor.split(".")
    return f"model.layers.{layer}.{IN_LAYER[part]}.{kind}"


def halves_apart(matrix: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows of a head in Hugging Face's order, whose rotary embedding pairs row i with row i + d/2.
    GGUF has the two of a pair side by side.
    """
    rows, columns = matrix.shape
    pairs = matrix.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.transpose(0, 2, 1, 3).reshape(rows, columns))


def tensors(reader: GGUFReader, field: Fields) -> dict[str, np.ndarray]:
    heads = {
        "attn_q": field("llama.attention.head_count"),
        "attn_k": field("llama.attention.head_count_kv"),
    }
    found = {}
    for tensor in reader.tensors:
        matrix = dequantize(tensor.data, tensor.tensor_type)
        matrix = matrix.reshape(tuple(int(size) for size in reversed(tensor.shape)))
        for part, number in heads.items():
            if f".{part}." in tensor.name:
                matrix = halves_apart(matrix, number)
        found[name_of(tensor.name)] = matrix.astype(np.float16)
        assert np.isfinite(found[name_of(tensor.name)]).all(), tensor.name
    return found


def config(field: Fields, has_head: bool) -> dict[str, Any]:
    hidden, heads = field("llama.embedding_length"), field("llama.attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": field("llama.feed_forward_length"),
        "num_hidden_layers": field("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": field("llama.attention.head_count_kv"),
        "head_dim": field("llama.rope.dimension_count", hidden // heads),
        "vocab_size": len(field("tokenizer.ggml.tokens")),
        "max_position_embeddings": field("llama.context_length"),
        "hidden_act": "silu",
        "rms_norm_eps": round(float(field("llama.attention.layer_norm_rms_epsilon")), 9),
        "rope_theta": float(field("llama.rope.freq_base", 10000.0)),
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": not has_head,
        "bos_token_id": field("tokenizer.ggml.bos_token_id"),
        "eos_token_id": field("tokenizer.ggml.eos_token_id"),
        "torch_dtype": "float16",
    }


def tokenizer(field: Fields) -> dict[str, Any]:
    """The content of tokenizer.json."""
    assert field("tokenizer.ggml.pre") == "smollm", "its digits stand alone"
    tokens, types = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": token, **flags, "special": kind == CONTROL}
            for i, (token, kind) in enumerate(zip(tokens, types, strict=True))
            if kind in (CONTROL, USER_DEFINED)
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {**byte_level, "use_regex": True},
            ],
        },
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in field("tokenizer.ggml.merges")],
        },
    }


def tokenizer_config(field: Fields) -> dict[str, Any]:
    tokens = field("tokenizer.ggml.tokens")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": field("llama.context_length"),
        "bos_token": tokens[field("tokenizer.ggml.bos_token_id")],
        "eos_token": tokens[field("tokenizer.ggml.eos_token_id")],
        "add_bos_token": bool(field("tokenizer.ggml.add_bos_token", False)),
        "clean_up_tokenization_spaces": False,
        "chat_template": field("tokenizer.chat_template"),
    }


def main(source: str, target: str) -> None:
    reader = GGUFReader(source)
    field = Fields(reader)
    assert field("general.architecture") == "llama"
    directory = Path(target)
    directory.mkdir(parents=True)
    weights = tensors(reader, field)
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    files = {
        "config.json": config(field, "lm_head.weight" in weights),
        "tokenizer.json": tokenizer(field),
        "tokenizer_config.json": tokenizer_config(field),
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, ensure_ascii=False), "utf-8")
    print(f"{directory}: {sum(w.nbytes for w in weights.values()) / 2**20:.0f} MiB")


if __name__ == "__main__":
    main(*sys.argv[1:])
