"""The Llama that is trained: names and shapes of Hugging Face's, without a cache."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Llama(nn.Module):
    """`config` is what becomes config.json."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.config = config
        hidden, vocab = config["hidden_size"], config["vocab_size"]
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(vocab, hidden)
        self.model.layers = nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))
        self.model.norm = nn.RMSNorm(hidden, config["rms_norm_eps"])
        self.lm_head = nn.Linear(hidden, vocab, bias=False)

    def reset(self, seed: int) -> None:
        """Random weights: normal, smaller where a layer adds to the residual stream."""
        generator = torch.Generator().manual_seed(seed)
        deep = (2 * self.config["num_hidden_layers"]) ** -0.5
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.dim() == 2:
                    scale = 0.02 * (
                        deep if name.endswith(("o_proj.weight", "down_proj.weight")) else 1
                    )
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Logits (rows, length, vocabulary) of `ids` (rows, length); `mask` (rows, 1, length,
        length) says what a place may attend to.
        """
        x = self.model.embed_tokens(ids)
        rotation = self._rotation(ids.shape[1], ids.device, x.dtype)
        for layer in self.model.layers:
            x = layer(x, rotation, mask)
        return self.lm_head(self.model.norm(x))

    def _rotation(
        self, length: int, device: torch.device, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        half = self.config["head_dim"] // 2
        steps = torch.arange(half, device=device, dtype=torch.float32) / half
        angles = torch.outer(
            torch.arange(length, device=device, dtype=torch.float32),
            self.config["rope_theta"] ** -steps,
        )
        return angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)


class Layer(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        hidden = config["hidden_size"]
        self.input_layernorm = nn.RMSNorm(hidden, config["rms_norm_eps"])
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(hidden, config["rms_norm_eps"])
        self.mlp = Mlp(hidden, config["intermediate_size"])

    def forward(
        self, x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor], mask: torch.Tensor
    ) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rotation, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Attention(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        hidden, self.head_dim = config["hidden_size"], config["head_dim"]
        queries = config["num_attention_heads"] * self.head_dim
        keys = config["num_key_value_heads"] * self.head_dim
        self.group = config["num_attention_heads"] // config["num_key_value_heads"]
        self.q_proj = nn.Linear(hidden, queries, bias=False)
        self.k_proj = nn.Linear(hidden, keys, bias=False)
        self.v_proj = nn.Linear(hidden, keys, bias=False)
        self.o_proj = nn.Linear(queries, hidden, bias=False)

    def forward(
        self, x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor], mask: torch.Tensor
    ) -> torch.Tensor:
        q, k, v = (
            proj(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = _rotate(q, *rotation), _rotate(k, *rotation)
        k, v = (t.repeat_interleave(self.group, dim=1) for t in (k, v))
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o_proj(y.transpose(1, 2).flatten(-2))


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-b, a), dim=-1) * sin).to(x.dtype)


class Mlp(nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
