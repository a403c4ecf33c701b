"""Mixtures of experts on a GPU.

ExLlamaV2 0.3.2 waits for the GPU once for each expert of a layer. With 128 experts and two to four
tokens at once, it computes only the experts chosen for the first token, which is wrong.
"""

import functools
from typing import Any

import torch
import torch.nn.functional as F
from exllamav2.moe_mlp import ExLlamaV2MoEMLP

# Up to this number of experts in a layer, each expert computes all tokens of a small pass. Reading
# the weights dominates the time, and the host need not know which experts are chosen.
MAX_DENSE = 16
MAX_DENSE_TOKENS = 128
# Maximum number of tokens that a pass computes one by one with ExLlamaV2's kernels for 128 experts.
MAX_SINGLE = 16
MAX_FUSED = 4  # maximum tokens of a pass in its kernels for few experts
FUSED = (4, 8, 16)  # numbers of experts that these kernels support


def take_over(model: Any) -> None:
    """Make this module compute the mixtures of experts of `model`, which need not be loaded yet."""
    for module in model.modules:
        if isinstance(module, ExLlamaV2MoEMLP):
            module.forward = functools.partial(forward, module)


def is_dense(module: Any) -> bool:
    """Whether a pass of up to MAX_DENSE_TOKENS tokens does the same work regardless of the experts
    chosen.
    """
    return isinstance(module, ExLlamaV2MoEMLP) and module.num_experts <= MAX_DENSE


def forward(
    module: Any,
    hidden_states: torch.Tensor,
    cache: Any = None,
    attn_params: Any = None,
    past_len: Any = None,
    intermediates: bool = False,
    loras: Any = None,
    **kwargs: Any,
) -> Any:
    """Replaces ExLlamaV2MoEMLP.forward. Takes and returns (rows, tokens, hidden size), float16."""
    rows, length, size = hidden_states.shape
    num_tokens = rows * length
    if intermediates or loras:
        return module.forward_torch(
            hidden_states, cache, attn_params, past_len, intermediates, loras=loras, **kwargs
        )
    is_quantized = module.q_handle is not None
    if is_quantized and module.num_experts in FUSED and num_tokens <= MAX_FUSED:
        return ExLlamaV2MoEMLP.forward(module, hidden_states)
    if is_quantized and module.num_experts == 128 and num_tokens <= MAX_SINGLE:
        for token in hidden_states.view(num_tokens, 1, 1, size):
            ExLlamaV2MoEMLP.forward(module, token)  # in place
        return hidden_states
    states = module.post_attention_layernorm.forward(hidden_states.view(num_tokens, size))
    weights, chosen = _choose(module, states)
    if module.num_experts <= MAX_DENSE and num_tokens <= MAX_DENSE_TOKENS:
        mixed = _compute_all(module, states, weights, chosen)
    else:
        mixed = _compute_chosen(module, states, weights, chosen)
    return hidden_states + mixed.view(rows, length, size)


def _choose(module: Any, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights and indices of each token's experts, both of the shape (tokens, experts per
    token).
    """
    shares = F.softmax(module.gate.forward(states), dim=-1, dtype=torch.float)
    weights, chosen = torch.topk(shares, module.num_experts_per_token, dim=-1)
    weights /= weights.sum(dim=-1, keepdim=True)
    return weights.to(states.dtype), chosen


def _compute_all(
    module: Any, states: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor
) -> torch.Tensor:
    """Every expert computes all tokens. The host receives nothing, so a graph can capture this."""
    shape = (len(states), module.num_experts)
    weight_of = torch.zeros(shape, dtype=states.dtype, device=states.device)
    weight_of.scatter_(1, chosen, weights)
    mixed = torch.zeros_like(states)
    for i in range(module.num_experts):
        weight = weight_of[:, i, None]
        computed = _expert(module, i, states)
        computed.masked_fill_(weight == 0, 0)  # its output may be infinite
        mixed.addcmul_(computed, weight)
    return mixed


def _compute_chosen(
    module: Any, states: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor
) -> torch.Tensor:
    """The chosen experts compute their tokens. The host waits only once, for the number of tokens
    per expert.
    """
    of_expert = torch.arange(module.num_experts, device=states.device)
    counts = (chosen.flatten() == of_expert[:, None]).sum(1).tolist()
    order = chosen.flatten().argsort(stable=True)
    tokens = order // module.num_experts_per_token
    weight = weights.flatten()[order, None]
    mixed = torch.zeros_like(states)
    begin = 0
    for i, count in enumerate(counts):
        if count:
            here = slice(begin, begin + count)
            computed = _expert(module, i, states[tokens[here]])
            mixed.index_add_(0, tokens[here], computed.mul_(weight[here]))
            begin += count
    return mixed


def _expert(module: Any, i: int, states: torch.Tensor) -> torch.Tensor:
    gate = module.w1[i].forward(states)
    gate = F.silu(gate) if module.archparams.mlp_act_func == "silu" else F.gelu(gate)
    result: torch.Tensor = module.w2[i].forward(gate.mul_(module.w3[i].forward(states)))
    return result
