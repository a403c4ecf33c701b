"""EXL3 models on a GPU, with exllamav3's compiled extension."""

import importlib.util
import json
import pathlib

import pytest
import torch
from safetensors.torch import save_file

from switchyard.engine.sampling import Sampling
from tests.conftest import DEMO
from tests.engine.exl2.drive import GREEDY, prompt
from tests.engine.forced import run
from tests.scripted import job

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        importlib.util.find_spec("exllamav3_ext") is None, reason="exllamav3 is not compiled here"
    ),
]

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 1024, 2816, 4, 16, 4, 64, 2048
LENGTHS = (5, 255, 256, 257, 700)  # tokens of prompts
MOST_BEHIND = 0.05  # of the logits' standard deviation: a token that is as good as the best


def matrices(prefix):
    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    yield f"{prefix}.self_attn.q_proj", HIDDEN, queries
    yield f"{prefix}.self_attn.k_proj", HIDDEN, keys
    yield f"{prefix}.self_attn.v_proj", HIDDEN, keys
    yield f"{prefix}.self_attn.o_proj", queries, HIDDEN
    yield f"{prefix}.mlp.gate_proj", HIDDEN, INNER
    yield f"{prefix}.mlp.up_proj", HIDDEN, INNER
    yield f"{prefix}.mlp.down_proj", INNER, HIDDEN


@pytest.fixture(scope="module", params=["LlamaForCausalLM", "Qwen3ForCausalLM", "Phi3ForCausalLM"])
def exl3_path(request, tmp_path_factory):
    """A model of random weights, 4 bits."""
    path, tensors = tmp_path_factory.mktemp("exl3"), {}
    torch.manual_seed(0)

    def quantized(name, num_in, num_out):
        shape = (num_in // 16, num_out // 16, 64)
        tensors[f"{name}.trellis"] = torch.randint(-(2**15), 2**15, shape, dtype=torch.int16)
        tensors[f"{name}.suh"] = (torch.randint(0, 2, (num_in,)) * 2 - 1).half()
        tensors[f"{name}.svh"] = ((torch.randint(0, 2, (num_out,)) * 2 - 1) * 0.02).half()

    tensors["model.embed_tokens.weight"] = (torch.randn(VOCABULARY, HIDDEN) * 0.1).half()
    tensors["model.norm.weight"] = torch.ones(HIDDEN).half()
    quantized("lm_head", HIDDEN, VOCABULARY)
    for i in range(LAYERS):
        prefix = f"model.layers.{i}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}.{norm}.weight"] = torch.ones(HIDDEN).half()
        if request.param.startswith("Qwen3"):
            for norm in ("q_norm", "k_norm"):
                tensors[f"{prefix}.self_attn.{norm}.weight"] = torch.ones(HEAD_DIM).half()
        for matrix in matrices(prefix):
            quantized(*matrix)
    save_file(tensors, path / "model.safetensors")
    config = {
        **{"architectures": [request.param], "hidden_size": HIDDEN, "intermediate_size": INNER},
        **{"num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "head_dim": HEAD_DIM},
        **{"num_key_value_heads": KV_HEADS, "vocab_size": VOCABULARY, "rms_norm_eps": 1e-5},
        **{"max_position_embeddings": 4096, "rope_theta": 1e4, "hidden_act": "silu"},
        **{"tie_word_embeddings": False, "original_max_position_embeddings": 4096},
        "quantization_config": {"quant_method": "exl3", "version": "1.6.5", "bits": 4.0},
    }
    (path / "config.json").write_text(json.dumps(config))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (path / file).write_bytes(pathlib.Path(DEMO, file).read_bytes())
    return str(path)


def tokens(events):
    return [i for event in events if hasattr(event, "token_ids") for i in event.token_ids]


def jobs():
    for n in LENGTHS:
        ids = tuple(i % VOCABULARY for i in prompt(n, n))
        yield n, job(f"job{n}", 48, prompt=ids, sampling=GREEDY, ignore_eos=True)


@torch.inference_mode()
def behind(backend, prompt_ids, token_ids):
    """How far the logit of each token is behind the best, by one pass without a cache."""
    library = backend._loaded.model.library
    ids = torch.tensor([[*prompt_ids, *token_ids]])
    logits = library.forward(ids, {"attn_mode": "flash_attn_nc"})
    rows = logits[0, len(prompt_ids) - 1 : -1, :VOCABULARY].float().cpu()
    own = rows.gather(1, torch.tensor(token_ids)[:, None])[:, 0]
    return float(((rows.max(-1).values - own) / rows.std()).max())


def test_texts_are_the_models_alone_together_and_from_cached_pages(serve, exl3_path):
    backend = serve(exl3_path, cache_tokens=16384, max_batch_size=16)
    assert backend._loaded.passes is not None
    every = dict(jobs())
    for found in [
        *(run(backend, one) for one in every.values()),
        *(run(backend, *every.values()) for _ in range(2)),
    ]:
        for n, one in every.items():
            if one.identifier in found:
                token_ids = tokens(found[one.identifier])
                assert len(token_ids) == 48
                assert behind(backend, one.prompt, token_ids) < MOST_BEHIND, n


def test_a_seed_and_a_guidance_pair_are_served_and_a_second_load_is_the_first(serve, exl3_path):
    backend = serve(exl3_path, cache_tokens=16384)
    ids = tuple(i % VOCABULARY for i in prompt(1, 40))
    seeded = job("seeded", 32, prompt=ids, sampling=Sampling(temperature=1.0, seed=5))
    pair = job(
        *("pair", 16),
        prompt=ids,
        negative_prompt=ids[:30],
        sampling=Sampling(temperature=0.0, cfg_scale=1.5),
    )
    first = [tokens(run(backend, one)[one.identifier]) for one in (seeded, pair)]
    backend.reload()
    assert [tokens(run(backend, one)[one.identifier]) for one in (seeded, pair)] == first
