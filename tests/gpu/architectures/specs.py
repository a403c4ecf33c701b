"""Configurations of tiny models, in the style of the hub: each architecture, and each way in which
one differs.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 256, 512, 3, 4, 2, 64
VOCABULARY, CONTEXT = 2048, 4096
GEMMA_HIDDEN = 384  # no square number, for the factor of its embeddings
WINDOW = 300

IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "torch_dtype": "float16"}
COMMON = {
    **IDS,
    **{"hidden_act": "silu", "hidden_size": HIDDEN, "initializer_range": 0.02},
    **{"intermediate_size": INNER, "max_position_embeddings": CONTEXT},
    **{"num_attention_heads": HEADS, "num_hidden_layers": LAYERS},
    **{"num_key_value_heads": KV_HEADS, "rms_norm_eps": 1e-5, "rope_scaling": None},
    **{"rope_theta": 10000.0, "tie_word_embeddings": False, "vocab_size": VOCABULARY},
}


@dataclass(frozen=True, slots=True)
class Spec:
    config: dict[str, Any]
    reference: dict[str, Any] | None = None  # of transformers, where it isn't the same
    rename: Callable[[dict[str, Any]], dict[str, Any]] | None = None  # its tensors, as the hub does
    files: dict[str, Any] = field(default_factory=dict)
    refusal: str | None = None  # words of it
    has_twin: bool = True  # also as EXL2


def of(architecture, kind, drop=(), **more):
    config = {"architectures": [architecture], "model_type": kind, **COMMON, **more}
    return {name: value for name, value in config.items() if name not in drop}


def prefixed(tensors):
    return {f"language_model.{name}": value for name, value in tensors.items()}


def as_yi(tensors):
    names = (("input_layernorm", "ln1"), ("post_attention_layernorm", "ln2"))
    return {_replaced(name, names): value for name, value in tensors.items()}


def as_gpt2(tensors):
    return {
        name.removeprefix("transformer."): value
        for name, value in tensors.items()
        if not name.startswith("lm_head")
    }


def as_internlm2(tensors):
    import torch

    names = (
        ("model.embed_tokens.weight", "model.tok_embeddings.weight"),
        ("lm_head.weight", "output.weight"),
        ("self_attn.o_proj", "attention.wo"),
        ("input_layernorm", "attention_norm"),
        ("mlp.gate_proj", "feed_forward.w1"),
        ("mlp.up_proj", "feed_forward.w3"),
        ("mlp.down_proj", "feed_forward.w2"),
        ("post_attention_layernorm", "ffn_norm"),
    )
    found = {}
    for name, value in tensors.items():
        if ".self_attn.q_proj" in name:
            parts = [value.view(KV_HEADS, HEADS // KV_HEADS, HEAD_DIM, HIDDEN)]
            for other in ("k_proj", "v_proj"):
                own = tensors[name.replace("q_proj", other)]
                parts.append(own.view(KV_HEADS, 1, HEAD_DIM, HIDDEN))
            packed = torch.cat(parts, 1).reshape(-1, HIDDEN).contiguous()
            found[name.replace("self_attn.q_proj", "attention.wqkv")] = packed
        elif ".self_attn.k_proj" not in name and ".self_attn.v_proj" not in name:
            found[_replaced(name, names)] = value
    return found


def _replaced(name, pairs):
    for old, new in pairs:
        name = name.replace(old, new)
    return name


LLAMA = of("LlamaForCausalLM", "llama")
LLAMA3 = {
    **{"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0},
    **{"original_max_position_embeddings": 512, "rope_type": "llama3"},
}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
LONG = [1.0 + 0.15 * i for i in range(HEAD_DIM // 2)]
SHORT = [1.0 + 0.01 * i for i in range(HEAD_DIM // 2)]
NEW_STYLE = of(
    *("LlamaForCausalLM", "llama"),
    drop=("rope_theta", "rope_scaling", "torch_dtype"),
    dtype="float16",
    rope_parameters={"rope_theta": 5e5, "rope_type": "default"},
)


def _llamas():
    llama, mistral = ("LlamaForCausalLM", "llama"), ("MistralForCausalLM", "mistral")
    yield "llama", Spec(LLAMA)
    yield "llama-bias", Spec(of(*llama, attention_bias=True, mlp_bias=True))
    odd = of(*llama, vocab_size=VOCABULARY + 12, tie_word_embeddings=True)
    yield "llama-odd-tied", Spec(odd)
    yield "llama3", Spec(of(*llama, head_dim=128, rope_theta=5e5, rope_scaling=LLAMA3))
    linear = {"type": "linear", "factor": 4.0}
    yield "llama-linear", Spec(of(*llama, rope_scaling=linear), has_twin=False)
    dynamic = {"type": "dynamic", "factor": 2.0}
    yield "llama-dynamic", Spec(of(*llama, rope_scaling=dynamic), has_twin=False)
    yield "llama-yarn", Spec(of(*llama, rope_scaling=YARN))
    scaled = {**YARN, "beta_fast": 16, "mscale": 0.7, "mscale_all_dim": 1.0, "truncate": False}
    yield "llama-yarn-mscale", Spec(of(*llama, rope_scaling=scaled), has_twin=False)
    gelu = of(*llama, hidden_act="gelu")
    yield "llama-gelu", Spec(gelu, refusal="hidden_act of gelu", has_twin=False)
    yield "llama-newstyle", Spec(NEW_STYLE, has_twin=False)
    for kind, settings in (("llama3", LLAMA3), ("yarn", {**YARN, "rope_type": "yarn"})):
        config = {**NEW_STYLE, "rope_parameters": {**settings, "rope_theta": 5e5}}
        yield f"{kind}-newstyle", Spec(config, has_twin=False)
    yield "mistral", Spec(of(*mistral, sliding_window=None, head_dim=128))
    yield "mistral-window", Spec(of(*mistral, sliding_window=WINDOW))
    mixtral = of(
        *("MixtralForCausalLM", "mixtral"),
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=None,
    )
    yield "mixtral", Spec(mixtral)
    yield "yi", Spec(of("YiForCausalLM", "Yi"), LLAMA, as_yi)
    stable = of(
        *("StableLmForCausalLM", "stablelm"),
        drop=("rms_norm_eps",),
        layer_norm_eps=1e-5,
        partial_rotary_factor=1.0,
        use_qkv_bias=False,
        use_parallel_residual=False,
        qk_layernorm=False,
    )
    yield "orion", Spec(of("OrionForCausalLM", "orion"), stable)
    yield "internlm2", Spec(of("InternLM2ForCausalLM", "internlm2"), LLAMA, as_internlm2)
    yield "index", Spec(of("IndexForCausalLM", "index"), LLAMA)
    minicpm = of("MiniCPMForCausalLM", "minicpm", scale_emb=3, scale_depth=1.4, dim_model_base=512)
    as_granite = of(
        *("GraniteForCausalLM", "granite"),
        attention_multiplier=1 / math.sqrt(HEAD_DIM),
        embedding_multiplier=3.0,
        residual_multiplier=1.4 / math.sqrt(LAYERS),
        logits_scaling=HIDDEN / 512,
    )
    yield "minicpm", Spec(minicpm, as_granite)


QWEN2 = {"rope_theta": 1e6, "use_sliding_window": False, "rms_norm_eps": 1e-6}
QWEN3 = {
    **{"rope_theta": 1e6, "head_dim": 128, "attention_bias": False, "rms_norm_eps": 1e-6},
    **{"sliding_window": None, "use_sliding_window": False, "max_window_layers": LAYERS},
}
MOE = {
    **QWEN3,
    **{"decoder_sparse_step": 1, "mlp_only_layers": [], "moe_intermediate_size": 256},
    **{"norm_topk_prob": True, "num_experts": 4, "num_experts_per_tok": 2},
}
QWEN_PREPROCESSOR = {
    **{"image_processor_type": "Qwen2VLImageProcessor", "image_mean": [0.5] * 3},
    **{"image_std": [0.3] * 3, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2},
    **{"min_pixels": 3136, "max_pixels": 12845056},
}


def _qwens():
    qwen2 = ("Qwen2ForCausalLM", "qwen2")
    plain = {**QWEN2, "sliding_window": CONTEXT, "max_window_layers": LAYERS}
    yield "qwen2", Spec(of(*qwen2, **plain))
    window = {"sliding_window": WINDOW, "max_window_layers": 1, "use_sliding_window": True}
    yield "qwen2-window", Spec(of(*qwen2, **{**plain, **window}))
    yield "qwen2-yarn", Spec(of(*qwen2, **plain, rope_scaling=YARN), has_twin=False)
    yield "qwen3", Spec(of("Qwen3ForCausalLM", "qwen3", **QWEN3))
    moe = ("Qwen3MoeForCausalLM", "qwen3_moe")
    yield "qwen3moe", Spec(of(*moe, **MOE))
    many = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 128}
    yield "qwen3moe-128", Spec(of(*moe, **{**MOE, **many}))
    nonorm = of(*moe, **{**MOE, "norm_topk_prob": False})
    yield "qwen3moe-nonorm", Spec(nonorm, refusal="norm_topk_prob")
    text = of(*qwen2, **QWEN2)
    vision = {
        **text,
        **{"rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]}, "image_token_id": 3},
        **{"sliding_window": 32768, "max_window_layers": LAYERS},
    }
    common = {
        **{"depth": 2, "in_chans": 3, "num_heads": 4, "patch_size": 14, "spatial_merge_size": 2},
        **{"spatial_patch_size": 14, "temporal_patch_size": 2},
    }
    files = {"preprocessor_config.json": QWEN_PREPROCESSOR}
    older = {**common, "embed_dim": 256, "mlp_ratio": 4, "hidden_size": HIDDEN}
    newer = {
        **{**common, "hidden_size": 256, "intermediate_size": 512, "out_hidden_size": HIDDEN},
        **{"window_size": 112, "fullatt_block_indexes": [1]},
    }
    for name, kind, architecture, tower in (
        ("qwen2vl", "qwen2_vl", "Qwen2VLForConditionalGeneration", older),
        ("qwen25vl", "qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", newer),
    ):
        config = {**vision, "architectures": [architecture], "model_type": kind}
        config["vision_config"] = tower
        yield name, Spec(config, text, files=files, has_twin=name == "qwen2vl")


GEMMA = {
    **{"head_dim": HEAD_DIM, "hidden_size": GEMMA_HIDDEN},
    **{"hidden_activation": "gelu_pytorch_tanh", "hidden_act": "gelu_pytorch_tanh"},
    **{"rms_norm_eps": 1e-6, "attention_bias": False, "tie_word_embeddings": True},
}
GEMMA2 = {
    **GEMMA,
    **{"num_hidden_layers": 4, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 0.6},
    **{"query_pre_attn_scalar": 48, "sliding_window": WINDOW, "cache_implementation": "hybrid"},
}
GEMMA3_TEXT = {
    **{"model_type": "gemma3_text", "head_dim": HEAD_DIM, "hidden_size": GEMMA_HIDDEN},
    **{"intermediate_size": INNER, "num_attention_heads": HEADS, "num_hidden_layers": 7},
    **{"num_key_value_heads": KV_HEADS, "query_pre_attn_scalar": 48, "rms_norm_eps": 1e-6},
    **{"rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": WINDOW},
    **{"vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT},
}
GEMMA3 = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    **IDS,
    "image_token_index": 3,
    "initializer_range": 0.02,
    "mm_tokens_per_image": 256,
    "text_config": GEMMA3_TEXT,
    "vision_config": {
        **{"hidden_size": 256, "image_size": 224, "intermediate_size": 512},
        **{"model_type": "siglip_vision_model", "num_attention_heads": 4, "num_hidden_layers": 2},
        **{"patch_size": 14, "vision_use_head": False},
    },
}
GEMMA3_REFERENCE = {
    "architectures": ["Gemma3ForCausalLM"],
    **IDS,
    **GEMMA3_TEXT,
    **{"rope_theta": 1e6, "rope_local_base_freq": 10000.0, "tie_word_embeddings": True},
    **{"sliding_window_pattern": 6, "hidden_activation": "gelu_pytorch_tanh"},
}
GEMMA3_FILES = {
    "preprocessor_config.json": {
        **{"image_processor_type": "Gemma3ImageProcessor", "image_mean": [0.5] * 3},
        **{"image_std": [0.5] * 3, "resample": 2, "rescale_factor": 1 / 255},
        "size": {"height": 224, "width": 224},
    }
}


def _gemma3(changes, **more):
    return Spec(
        {**GEMMA3, "text_config": {**GEMMA3_TEXT, **changes}},
        {**GEMMA3_REFERENCE, **changes},
        prefixed,
        GEMMA3_FILES,
        **more,
    )


def _gemmas():
    gemma2 = ("Gemma2ForCausalLM", "gemma2")
    yield "gemma", Spec(of("GemmaForCausalLM", "gemma", **GEMMA))
    yield "gemma2", Spec(of(*gemma2, **GEMMA2))
    yield "gemma2-nowindow", Spec(of(*gemma2, **{**GEMMA2, "sliding_window": CONTEXT}))
    yield "gemma3", _gemma3({})
    yield "gemma3-nowindow", _gemma3({"sliding_window": CONTEXT}, has_twin=False)
    local = {"rope_local_base_freq": 5000.0}
    yield "gemma3-local", _gemma3(local, has_twin=False)
    mixed = ["full_attention", *["sliding_attention"] * 3] * 2
    yield "gemma3-layers", _gemma3({"layer_types": mixed[:7]}, has_twin=False)
    layered = {
        "full_attention": {"factor": 8.0, "rope_theta": 1e6, "rope_type": "linear"},
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
    }
    text = {name: value for name, value in GEMMA3_TEXT.items() if name != "rope_scaling"}
    yield (
        "gemma3-newstyle",
        Spec(
            {**GEMMA3, "text_config": {**text, "rope_parameters": layered}},
            GEMMA3_REFERENCE,
            prefixed,
            GEMMA3_FILES,
            refusal="for each kind of layer",
            has_twin=False,
        ),
    )


def _coheres():
    bare = {"drop": ("rms_norm_eps", "tie_word_embeddings"), "layer_norm_eps": 1e-5}
    both = {"logit_scale": 0.5, "attention_bias": False}
    cohere = of("CohereForCausalLM", "cohere", **bare, **both, use_qk_norm=False)
    yield "cohere", Spec(cohere)
    yield "cohere-qknorm", Spec({**cohere, "use_qk_norm": True})
    cohere2 = of(
        *("Cohere2ForCausalLM", "cohere2"),
        **bare,
        **both,
        head_dim=HEAD_DIM,
        sliding_window=WINDOW,
        sliding_window_pattern=4,
        layer_switch=4,
        num_hidden_layers=5,
        position_embedding_type="rope_gptj",
        order_of_interleaved_layers="local_attn_first",
    )
    yield "cohere2", Spec(cohere2)
    layers = {name: v for name, v in cohere2.items() if name != "sliding_window_pattern"}
    kinds = [*["sliding_attention"] * 2, "full_attention"] * 2
    yield "cohere2-layers", Spec({**layers, "layer_types": kinds[:5]}, has_twin=False)


def _phis():
    phi3 = of(
        *("Phi3ForCausalLM", "phi3"),
        sliding_window=None,
        attention_bias=False,
        original_max_position_embeddings=CONTEXT,
    )
    yield "phi3", Spec(phi3)
    yield "phi3-window", Spec({**phi3, "sliding_window": WINDOW}, has_twin=False)
    long = {"type": "longrope", "long_factor": LONG, "short_factor": SHORT}
    short_context = {"original_max_position_embeddings": 512}
    yield "phi3-longrope", Spec({**phi3, **short_context, "rope_scaling": long})
    fewer = {**long, "long_factor": LONG[:24], "short_factor": SHORT[:24]}
    partial = {"partial_rotary_factor": 0.75, "tie_word_embeddings": True, "rope_scaling": fewer}
    yield "phi4-mini", Spec({**phi3, **short_context, **partial})


def _others():
    star = of(
        *("Starcoder2ForCausalLM", "starcoder2"),
        drop=("rms_norm_eps",),
        **{"hidden_act": "gelu_pytorch_tanh", "norm_epsilon": 1e-5, "layer_norm_epsilon": 1e-5},
        **{"mlp_type": "default", "norm_type": "layer_norm", "use_bias": True},
        **{"sliding_window": None, "tie_word_embeddings": True},
    )
    yield "starcoder2", Spec(star)
    yield "starcoder2-window", Spec({**star, "sliding_window": WINDOW}, has_twin=False)
    dbrx = {
        **{"architectures": ["DbrxForCausalLM"], "model_type": "dbrx", **IDS},
        **{"d_model": HIDDEN, "n_heads": HEADS, "n_layers": LAYERS, "max_seq_len": CONTEXT},
        **{"rope_theta": 500000, "vocab_size": VOCABULARY, "tie_word_embeddings": False},
        "attn_config": {"clip_qkv": None, "kv_n_heads": KV_HEADS, "rope_theta": 500000},
        "ffn_config": {
            "ffn_hidden_size": 384,  # not HIDDEN: exllamav2 tells w2's sides apart by their sizes
            **{"moe_num_experts": 4, "moe_top_k": 2, "moe_jitter_eps": 0.0},
            "moe_loss_weight": 0.05,
        },
    }
    unclipped = {**dbrx["attn_config"], "clip_qkv": 1e4}  # transformers fails without any
    yield "dbrx", Spec(dbrx, {**dbrx, "attn_config": unclipped})
    clipped = {**dbrx, "attn_config": {**dbrx["attn_config"], "clip_qkv": 8}}
    yield "dbrx-clip", Spec(clipped, refusal="attn_config.clip_qkv of 8", has_twin=False)
    gpt = {
        **IDS,
        **{"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "layer_norm_epsilon": 1e-5},
        **{"n_embd": HIDDEN, "n_head": HEADS, "n_layer": LAYERS, "n_positions": CONTEXT},
        **{"vocab_size": VOCABULARY, "scale_attn_weights": True},
    }
    big = {
        **{"architectures": ["GPTBigCodeForCausalLM"], "model_type": "gpt_bigcode", **gpt},
        **{"n_inner": 1024, "activation_function": "gelu_pytorch_tanh", "multi_query": True},
    }
    yield "gptbigcode", Spec(big)
    gpt2 = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", **gpt}
    gpt2 |= {"n_ctx": CONTEXT, "activation_function": "gelu_new"}
    yield "gpt2", Spec(gpt2, rename=as_gpt2)
    granite = of(
        *("GraniteForCausalLM", "granite"),
        **{"attention_bias": False, "mlp_bias": False, "attention_multiplier": 0.1},
        **{"embedding_multiplier": 6.0, "logits_scaling": 0.5, "residual_multiplier": 0.4},
        tie_word_embeddings=True,
    )
    yield "granite", Spec(granite)
    glm4 = {"attention_bias": True, "head_dim": HEAD_DIM, "partial_rotary_factor": 0.5}
    yield "glm4", Spec(of("Glm4ForCausalLM", "glm4", **glm4))


def _visions():
    ids = ("bos_token_id", "eos_token_id", "pad_token_id")
    text = {name: value for name, value in COMMON.items() if name not in ids}
    text |= {
        **{"model_type": "mistral", "head_dim": HEAD_DIM, "sliding_window": None},
        "rope_theta": 1e6,
    }
    reference = {"architectures": ["MistralForCausalLM"], **IDS, **text}
    pixtral = {
        **IDS,
        "image_token_index": 3,
        "multimodal_projector_bias": True,
        "projector_hidden_act": "gelu",
        "vision_feature_layer": -1,
        "text_config": text,
        "vision_config": {
            **{"head_dim": 64, "hidden_act": "silu", "hidden_size": 256, "image_size": 256},
            **{"intermediate_size": 512, "model_type": "pixtral", "num_attention_heads": 4},
            **{"num_channels": 3, "num_hidden_layers": 2, "patch_size": 16},
            "rope_theta": 10000.0,
        },
    }
    files = {
        "preprocessor_config.json": {
            **{"image_processor_type": "PixtralImageProcessor", "image_mean": [0.5] * 3},
            **{"image_std": [0.3] * 3, "patch_size": {"height": 16, "width": 16}, "resample": 3},
            **{"rescale_factor": 1 / 255, "size": {"longest_edge": 1024}, "do_resize": True},
        }
    }
    for name, architecture, kind, more in (
        ("pixtral", "LlavaForConditionalGeneration", "llava", {}),
        ("mistral3", "Mistral3ForConditionalGeneration", "mistral3", {"spatial_merge_size": 2}),
    ):
        config = {"architectures": [architecture], "model_type": kind, **pixtral, **more}
        yield name, Spec(config, reference, prefixed, files)


def _unknown():
    for architecture, kind in (
        ("PhiForCausalLM", "phi"),
        ("GPTNeoXForCausalLM", "gpt_neox"),
        ("NemotronForCausalLM", "nemotron"),
        ("Gemma3ForCausalLM", "gemma3_text"),
        ("Olmo2ForCausalLM", "olmo2"),
        ("Llama4ForCausalLM", "llama4_text"),
    ):
        words = f"the architecture {architecture}"
        yield f"x-{kind}", Spec(of(architecture, kind), LLAMA, refusal=words, has_twin=False)


SPECS: dict[str, Spec] = {
    name: spec
    for family in (_llamas, _qwens, _gemmas, _coheres, _phis, _others, _visions, _unknown)
    for name, spec in family()
}
