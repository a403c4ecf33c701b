"""A plain Llama in float32 on the CPU, with the interface that the dynamic generator calls. Used on
the engine thread.
"""

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from exllamav2 import ExLlamaV2Config

from switchyard.engine.backends.exl.progress import Callback
from switchyard.engine.backends.exl2.cpu.attention import PagedAttention
from switchyard.engine.backends.exl2.cpu.cache import CpuCache
from switchyard.engine.backends.exl2.cpu.weights import LayerWeights, Weights, read_weights
from switchyard.engine.backends.exl2.load.positions import frequencies
from switchyard.engine.errors import ModelError
from switchyard.engine.model.loadable import check_kind
from switchyard.engine.model.rope import Rope, read_rope

PADDING_LOGIT = -65504.0  # of rows that pad the vocabulary; exllamav2's value

# Settings of ExLlamaV2Config beyond a plain Llama's shape, and their values in a plain Llama.
PLAIN: dict[str, object] = {
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "logit_scale": 1,
    "partial_rotary_factor": 1.0,
    "scale_alpha_value": 1.0,
    "scale_depth": 1,
    "scale_emb": 1,
    "sliding_window": 0,
    "use_qk_norm": False,
}


class CpuLlama:
    """A Llama model with the attributes that ExLlamaV2DynamicGenerator needs in paged mode:
    `config` and `forward_chunk`.
    """

    def __init__(self, config: ExLlamaV2Config) -> None:
        """Raises ModelError for a model that isn't a plain, unquantized Llama."""
        model_config = _read_config(config)
        check_kind(model_config)
        _check_shape(config, model_config)
        self.config = config
        self._rotations = _rotations(config, read_rope(model_config))
        self._weights: Weights | None = None

    def load(self, progress: Callback | None = None) -> None:
        """Read the weights. `progress` is called with the number of loaded layers and the total
        number. Raises ModelError.
        """
        self._weights = read_weights(self.config, progress)

    def unload(self) -> None:
        self._weights = None

    @torch.inference_mode()
    def forward_chunk(
        self,
        input_ids: torch.Tensor,
        cache: CpuCache,
        attn_params: Any,
        preprocess_only: bool = False,
        loras: Any = None,
        indexed_embeddings: Any = None,
    ) -> dict[str, torch.Tensor]:
        """Write keys and values of `input_ids`, (batch, q_len), into `cache`. Returns "logits",
        (batch, q_len, vocabulary padded to 32), unless `preprocess_only`.

        `attn_params`: exllamav2's PagedParams. Raises IndexError for a token id beyond the
        vocabulary, or a position beyond max_seq_len.
        """
        if loras:
            raise ModelError("the CPU backend does not support LoRAs: serve the model on a GPU")
        if indexed_embeddings:
            raise ModelError("the CPU backend does not support images: serve the model on a GPU")
        weights = self._weights
        assert weights is not None, "call load() first"
        batch, q_len = input_ids.shape
        attention = PagedAttention(attn_params, q_len)
        rotations = self._rotations[attention.positions]
        # As in exllamav2, a negative id counts as token 0.
        x = F.embedding(input_ids.clamp(min=0).view(-1), weights.embedding)
        last = len(weights.layers) - 1
        for i, layer in enumerate(weights.layers):
            queries = self._write_keys_values(
                layer, x, rotations, cache.states[i][0], attention.slots
            )
            if preprocess_only and i == last:
                return {}
            attended = attention.attend(
                queries, cache.states[i][0], cache.key_heads[i], cache.value_heads[i]
            )
            x = torch.addmm(x, attended, layer.output)
            gate, up = torch.mm(self._normed(x, layer.mlp_norm), layer.gate_up).chunk(2, dim=1)
            x = torch.addmm(x, F.silu(gate).mul_(up), layer.down)
        logits = torch.mm(self._normed(x, weights.norm), weights.head).view(batch, q_len, -1)
        logits[:, :, self.config.vocab_size :] = PADDING_LOGIT
        return {"logits": logits}

    def _write_keys_values(
        self,
        layer: LayerWeights,
        x: torch.Tensor,
        rotations: torch.Tensor,
        state: torch.Tensor,
        slots: torch.Tensor,
    ) -> torch.Tensor:
        """Returns the queries, (tokens, heads, head_dim)."""
        num_queries = self.config.num_attention_heads
        num_rotated = num_queries + self.config.num_key_value_heads
        heads = torch.mm(self._normed(x, layer.attention_norm), layer.qkv)
        heads = heads.view(x.shape[0], -1, self.config.head_dim)
        pairs = heads[:, :num_rotated].view(x.shape[0], num_rotated, -1, 2)
        torch.view_as_complex(pairs).mul_(rotations)
        state.index_copy_(0, slots, heads[:, num_queries:])
        return heads[:, :num_queries]

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, weight.shape, weight, self.config.norm_eps)


def _read_config(config: ExLlamaV2Config) -> dict[str, Any]:
    model_config: dict[str, Any] = json.loads(
        (Path(config.model_dir) / "config.json").read_text("utf-8")
    )
    return model_config


def _check_shape(config: ExLlamaV2Config, model_config: dict[str, Any]) -> None:
    activation = model_config.get("hidden_act", "silu")
    differing = [name for name, value in PLAIN.items() if getattr(config, name) != value]
    if activation != "silu":
        differing.append("hidden_act")
    if differing:
        raise ModelError(
            f"the CPU backend supports only plain Llama models, but this model differs in"
            f" {', '.join(differing)}: use a CUDA device for this model"
        )
    if config.num_attention_heads % config.num_key_value_heads:
        raise ModelError(
            f"config.json: {config.num_attention_heads} attention heads can't share "
            f"{config.num_key_value_heads} key/value heads evenly"
        )
    if config.head_dim % 2:
        raise ModelError(f"config.json: a head dimension of {config.head_dim} is odd")


def _rotations(config: ExLlamaV2Config, rope: Rope) -> torch.Tensor:
    """The complex rotation of each pair of numbers in a head, by position: (positions, 1, head_dim
    / 2). Raises ModelError.
    """
    theta = config.rotary_embedding_base
    found, scale = frequencies(rope, theta, config.head_dim, config.max_seq_len, torch.float64)
    positions = torch.arange(config.max_seq_len, dtype=torch.float64) / config.scale_pos_emb
    angles = torch.outer(positions, found)
    sizes = torch.full_like(angles, scale)
    return torch.polar(sizes, angles).to(torch.complex64).unsqueeze(1)
