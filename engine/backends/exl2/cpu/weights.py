"""The weights of a Llama, in the layout of its forward pass."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from exllamav2 import ExLlamaV2Config

from switchyard.engine.backends.exl.progress import Callback
from switchyard.engine.backends.exl2.cpu.checkpoint import Checkpoint, open_checkpoint
from switchyard.engine.errors import ModelError


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Matrices multiply from the right. A matrix that has more outputs than inputs is stored as
    (inputs, outputs), although a checkpoint stores it as (outputs, inputs). This makes products of
    a few rows twice as fast.
    """

    attention_norm: torch.Tensor
    qkv: torch.Tensor  # query, key and value heads, in this order
    output: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True, slots=True)
class Weights:
    embedding: torch.Tensor  # (vocabulary, hidden)
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: torch.Tensor  # (hidden, vocabulary padded to 32)


def read_weights(config: ExLlamaV2Config, progress: Callback | None) -> Weights:
    """Read the .safetensors files of `config.model_dir`. Raises ModelError."""
    vocab_size, hidden, count = config.vocab_size, config.hidden_size, config.num_hidden_layers
    with open_checkpoint(config.model_dir) as checkpoint:
        embedding = checkpoint.tensor("model.embed_tokens.weight", vocab_size, hidden)
        head = embedding
        if "lm_head.weight" in checkpoint:  # otherwise tied to the embedding
            head = checkpoint.tensor("lm_head.weight", vocab_size, hidden)
        norm = checkpoint.tensor("model.norm.weight", hidden)
        if f"model.layers.{count}.input_layernorm.weight" in checkpoint:
            raise ModelError(
                f"config.json: num_hidden_layers is {count}, but the files contain at least"
                f" {count + 1} layers"
            )
        layers = []
        for i in range(count):
            if progress is not None:
                progress(i, count)
            layers.append(_read_layer(checkpoint, config, f"model.layers.{i}."))
    if progress is not None:
        progress(count, count)
    return Weights(
        embedding=embedding,
        layers=tuple(layers),
        norm=norm,
        head=F.pad(head.t(), (0, -vocab_size % 32)).contiguous(),
    )


def _read_layer(checkpoint: Checkpoint, config: ExLlamaV2Config, prefix: str) -> LayerWeights:
    hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    num_heads, num_kv_heads = config.num_attention_heads, config.num_key_value_heads

    def heads(name: str, count: int) -> torch.Tensor:
        return checkpoint.tensor(f"{prefix}self_attn.{name}.weight", count * head_dim, hidden)

    def paired(weight: torch.Tensor) -> torch.Tensor:
        # A checkpoint rotates number i of a head with number i + head_dim / 2. Here the two are
        # adjacent, as one complex number; using this order in both queries and keys leaves their
        # products unchanged.
        halves = weight.view(-1, 2, head_dim // 2, hidden)
        return halves.transpose(1, 2).reshape(-1, hidden)

    query, key = paired(heads("q_proj", num_heads)), paired(heads("k_proj", num_kv_heads))
    output = checkpoint.tensor(f"{prefix}self_attn.o_proj.weight", hidden, num_heads * head_dim)
    gate = checkpoint.tensor(f"{prefix}mlp.gate_proj.weight", inner, hidden)
    up = checkpoint.tensor(f"{prefix}mlp.up_proj.weight", inner, hidden)
    return LayerWeights(
        attention_norm=checkpoint.tensor(f"{prefix}input_layernorm.weight", hidden),
        qkv=_transposed(query, key, heads("v_proj", num_kv_heads)),
        output=output.t(),
        mlp_norm=checkpoint.tensor(f"{prefix}post_attention_layernorm.weight", hidden),
        gate_up=_transposed(gate, up),
        down=checkpoint.tensor(f"{prefix}mlp.down_proj.weight", hidden, inner).t(),
    )


def _transposed(*matrices: torch.Tensor) -> torch.Tensor:
    return torch.cat(matrices).t().contiguous()
