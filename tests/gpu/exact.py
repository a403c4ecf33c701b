"""Logits of whole models against float32's, of Llama or Qwen2 in EXL2, with the weights that
exllamav2 unpacks: python -m tests.gpu.exact MODEL_DIR [STEPS].
"""

import sys

import numpy as np
import torch
import torch.nn.functional as F

from switchyard.engine.backends import make_backend
from switchyard.engine.config import PAGE_SIZE, ModelConfig

ROWS = (1, 2, 4, 8, 16, 32, 64)


def exact_logits(model, token_ids):
    """(rows, tokens, vocabulary), float32. `model`: exllamav2's, loaded."""
    config, modules = model.config, model.modules_dict

    def dense(key):
        linear = modules[key]
        bias = linear.get_bias_tensor().float() if linear.has_bias else 0
        weight = linear.get_weight_tensor_dq().float()
        return lambda y: y @ weight + bias

    def norm(key, y):
        weight = modules[key].weight.float()
        return y * torch.rsqrt(y.square().mean(-1, keepdim=True) + config.norm_eps) * weight

    device = modules["model.norm"].weight.device
    x = modules["model.embed_tokens"].embedding.weight[token_ids].float().to(device)
    rows, length, _ = x.shape
    size = config.head_dim
    steps = torch.arange(0, size, 2, device=device).float() / size
    angles = torch.outer(
        torch.arange(length, device=device).float(), config.rotary_embedding_base**-steps
    ).repeat(1, 2)
    cos, sin = angles.cos()[None, :, None], angles.sin()[None, :, None]

    def rotated(y):
        a, b = y.chunk(2, -1)
        return y * cos + torch.cat((-b, a), -1) * sin

    for i in range(config.num_hidden_layers):
        layer = f"model.layers.{i}"
        y = norm(f"{layer}.input_layernorm", x)
        q, k, v = (
            dense(f"{layer}.self_attn.{n}_proj")(y).view(rows, length, -1, size) for n in "qkv"
        )
        q, k = rotated(q), rotated(k)
        several = q.shape[2] // k.shape[2]
        mixed = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            k.repeat_interleave(several, 2).transpose(1, 2),
            v.repeat_interleave(several, 2).transpose(1, 2),
            is_causal=True,
        )
        x = x + dense(f"{layer}.self_attn.o_proj")(mixed.transpose(1, 2).flatten(2))
        y = norm(f"{layer}.post_attention_layernorm", x)
        gate, up = (dense(f"{layer}.mlp.{n}_proj")(y) for n in ("gate", "up"))
        x = x + dense(f"{layer}.mlp.down_proj")(F.silu(gate) * up)
    return dense("lm_head")(norm("model.norm", x))[..., : config.vocab_size]


def stepped_logits(backend, token_ids):
    """The same by decode steps of captured passes."""
    passes, rows = backend._loaded.passes, len(token_ids)
    pages = np.arange(rows, dtype=np.int32)[:, None]
    found = [
        passes.run(token_ids[:, i].clone(), [i] * rows, pages)[:, 0].float()
        for i in range(token_ids.shape[1])
    ]
    size = backend._loaded.model.config.vocab_size
    return torch.stack(found, 1)[..., :size]


def error(found, expected):
    return float((found - expected).norm() / expected.norm())


def random_tokens(model, rows, steps):
    generator = torch.Generator().manual_seed(rows)
    return torch.randint(300, model.config.vocab_size - 300, (rows, steps), generator=generator)


def main():
    path, steps = sys.argv[1], int((sys.argv[2:] or ["6"])[0])
    most = ROWS[-1]
    settings = {"device": "cuda", "max_batch_size": most, "cache_tokens": most * PAGE_SIZE}
    exact = token_ids = None
    for ways in (("exllamav2", "off"), ("auto", "off"), ("auto", "auto")):
        config = ModelConfig(path, "exact", products=ways[0], unpacked_weights=ways[1], **settings)
        backend = make_backend(config)
        info = backend.open()
        print(f"# products {info.products}, {backend.occupancy().kept}", flush=True)
        with torch.inference_mode():
            model = backend._loaded.model
            if exact is None:
                token_ids = random_tokens(model, most, steps)
                exact = exact_logits(model, token_ids).cpu()
            for rows in ROWS:
                found = stepped_logits(backend, token_ids[:rows])
                again = stepped_logits(backend, token_ids[:rows])
                expected = exact[:rows].cuda()
                same = (found.argmax(-1) == expected.argmax(-1)).float().mean()
                print(
                    f"{rows:3} rows, computed as {backend._loaded.passes.num_rows:3}: relative"
                    f" error {error(found, expected):.2e}, first token as in float32"
                    f" {100 * float(same):.1f} %, repeats equal {torch.equal(found, again)}",
                    flush=True,
                )
        del model
        backend.close()
        del backend
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
