"""A Llama as its definition has it: float64, a whole sequence at once, no cache, no batch."""

import torch


def random_tensors(config, dtype):
    """A checkpoint in Hugging Face's names for `config`, a config.json."""
    generator = torch.Generator().manual_seed(1)
    hidden, inner, head_dim = (
        config[name] for name in ("hidden_size", "intermediate_size", "head_dim")
    )
    queries = config["num_attention_heads"] * head_dim
    keys = config["num_key_value_heads"] * head_dim
    shapes = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        shapes |= {
            f"{layer}.input_layernorm.weight": (hidden,),
            f"{layer}.self_attn.q_proj.weight": (queries, hidden),
            f"{layer}.self_attn.k_proj.weight": (keys, hidden),
            f"{layer}.self_attn.v_proj.weight": (keys, hidden),
            f"{layer}.self_attn.o_proj.weight": (hidden, queries),
            f"{layer}.post_attention_layernorm.weight": (hidden,),
            f"{layer}.mlp.gate_proj.weight": (inner, hidden),
            f"{layer}.mlp.up_proj.weight": (inner, hidden),
            f"{layer}.mlp.down_proj.weight": (hidden, inner),
        }
    # Large enough that attention is far from uniform, and a wrong position is seen.
    return {
        name: (torch.randn(shape, generator=generator) * 2 / shape[-1] ** 0.5).to(dtype)
        if len(shape) == 2
        else torch.rand(shape, generator=generator).add(0.5).to(dtype)
        for name, shape in shapes.items()
    }


def logits(tensors, config, token_ids):
    """(tokens, vocabulary), of every position."""
    weights = {name: tensor.double() for name, tensor in tensors.items()}
    x = weights["model.embed_tokens.weight"][token_ids]
    for i in range(config["num_hidden_layers"]):
        layer = {
            name.removeprefix(f"model.layers.{i}."): tensor
            for name, tensor in weights.items()
            if name.startswith(f"model.layers.{i}.")
        }
        x = x + _attention(_norm(x, layer["input_layernorm.weight"], config), layer, config)
        h = _norm(x, layer["post_attention_layernorm.weight"], config)
        gate, up = (h @ layer[f"mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (gate * torch.sigmoid(gate) * up) @ layer["mlp.down_proj.weight"].T
    head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    return _norm(x, weights["model.norm.weight"], config) @ head.T


def _norm(x, weight, config):
    return x / (x.square().mean(-1, keepdim=True) + config["rms_norm_eps"]).sqrt() * weight


def _attention(h, layer, config):
    length, head_dim = len(h), config["head_dim"]
    q, k, v = (
        (h @ layer[f"self_attn.{name}_proj.weight"].T).view(length, -1, head_dim) for name in "qkv"
    )
    q, k = _rotate(q, config), _rotate(k, config)
    causal = torch.ones(length, length).tril().bool()
    group = config["num_attention_heads"] // config["num_key_value_heads"]
    heads = []
    for i in range(config["num_attention_heads"]):
        scores = q[:, i] @ k[:, i // group].T / head_dim**0.5
        heads.append(scores.masked_fill(~causal, -torch.inf).softmax(-1) @ v[:, i // group])
    return torch.cat(heads, dim=-1) @ layer["self_attn.o_proj.weight"].T


def _rotate(x, config):
    """Number i of a head turns with number i + head_dim / 2."""
    half = config["head_dim"] // 2
    theta = (config.get("rope_parameters") or config)["rope_theta"]
    angles = torch.arange(len(x)).double()[:, None, None] * theta ** (
        -torch.arange(half).double() / half
    )
    a, b = x[..., :half], x[..., half:]
    return torch.cat(
        (a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), dim=-1
    )
