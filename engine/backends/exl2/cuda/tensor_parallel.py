"""Tensor parallelism, to the extent that exllamav2 0.3.2 supports it. Used on the engine thread.
exllamav2 does not refuse models that it can't split. Instead, it fails an assertion while loading
or in each step, omits parts that its kernels don't support, or ends the process.
"""

from collections.abc import Sequence
from typing import Any

from exllamav2 import ExLlamaV2, ExLlamaV2Cache_TP
from exllamav2.linear import ExLlamaV2Linear
from exllamav2.tensor_p import TPContext

from switchyard.engine.backends.exl.progress import Callback
from switchyard.engine.errors import ModelError


def check(model: ExLlamaV2, num_gpus: int) -> None:
    """Raises ModelError if a model can't be split across `num_gpus` GPUs. The model need not be
    loaded.
    """
    if num_gpus < 2:
        raise ModelError("tensor_parallel needs two GPUs or more", "tensor_parallel")
    config, obstacle = model.config, _obstacle(model)
    if obstacle is not None:
        raise ModelError(
            f"tensor_parallel: ExLlamaV2 can't spread {config.architecture} over GPUs: {obstacle}",
            "tensor_parallel",
        )
    if not all(_is_exl2(linear) for linear in _matrices(model)):
        raise ModelError(
            "tensor_parallel is only for EXL2 models: not all matrices of this model are EXL2",
            "tensor_parallel",
        )
    if config.num_key_value_heads < num_gpus:
        raise ModelError(
            f"tensor_parallel: {config.num_key_value_heads} key/value heads are too few for"
            f" {num_gpus} GPUs; set gpu_split to 0 for some of them",
            "tensor_parallel",
        )


def load(
    model: ExLlamaV2, split: Sequence[float], cache: Any, tokens: int, progress: Callback
) -> ExLlamaV2Cache_TP:
    """`split`: the GiB for each GPU. `cache`: the class of each GPU's cache. Raises ModelError."""
    shares = list(split)
    try:
        context = TPContext(model, shares, tokens, cache)
    except ZeroDivisionError:  # the cache leaves no memory
        raise _too_small(shares) from None
    if context.id_split_devs != context.rs_split_devs:  # it would read beyond a list and crash
        raise _too_small(shares)
    model.load_tp(shares, callback=progress, expect_cache_tokens=tokens, expect_cache_base=cache)
    return ExLlamaV2Cache_TP(model, base=cache, max_seq_len=tokens)


def _too_small(shares: Sequence[float]) -> ModelError:
    sizes = " + ".join(f"{share:.1f}" for share in shares)
    return ModelError(
        f"tensor_parallel: with {sizes} GiB, one GPU gets too small a part of this model: set a"
        " higher value, or 0, for that GPU in gpu_split; a small model needs only one GPU",
        "gpu_split",
    )


def _obstacle(model: ExLlamaV2) -> str | None:
    """A part of the model that the kernels don't support, or None if there is none."""
    config = model.config
    if not config.arch.lm.supports_tp:
        return "it does not support this architecture"
    if config.intermediate_size % 128:
        return f"its intermediate_size, {config.intermediate_size}, is not a multiple of 128"
    if config.partial_rotary_factor != 1:
        return f"its partial_rotary_factor is {config.partial_rotary_factor}"
    if config.num_attention_heads * config.head_dim != config.hidden_size:
        return "its heads together are not as wide as its hidden state"
    for module in model.modules:
        if getattr(module, "q_norm", None) is not None:
            return "it has norms of queries and keys"
        if getattr(module, "post_layernorm", None) is not None:
            return "it has norms after its layers"
    return None


def _matrices(model: ExLlamaV2) -> list[ExLlamaV2Linear]:
    modules = [part for module in model.modules for part in (module, *module.submodules)]
    return [module for module in modules if isinstance(module, ExLlamaV2Linear)]


def _is_exl2(linear: ExLlamaV2Linear) -> bool:
    keys = (linear.key, linear.alt_key)
    return any(f"{key}.q_weight" in linear.model.config.tensor_file_map for key in keys)
