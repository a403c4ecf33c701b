"""Corrects the attention windows, and the tables of sines and cosines, that ExLlamaV2 misreads.
Used on the engine thread.
"""

from typing import Any

import torch
from exllamav2 import ExLlamaV2, ExLlamaV2Config
from exllamav2.architecture import RopeStyle
from exllamav2.attn import ExLlamaV2Attention
from exllamav2.parallel_decoder import ExLlamaV2ParallelDecoder

from switchyard.engine.backends.exl2.load.positions import OTHERWISE, table
from switchyard.engine.errors import ModelError
from switchyard.engine.model.layers import Layer, read_layers
from switchyard.engine.model.model_dir import ModelDir
from switchyard.engine.model.rope import read_rope


def check_windows(config: ExLlamaV2Config) -> None:
    """Checks a model whose attention will run without windows. Raises ModelError if a text could
    exceed one of the model's windows.
    """
    windows = [layer.window for layer in _layers(config) if layer.window is not None]
    shortest = min(windows, default=config.max_seq_len)
    if config.max_seq_len > shortest:
        raise ModelError(
            f"max_seq_len {config.max_seq_len}: some layers see only {shortest} tokens, which"
            " ExLlamaV2 supports only with flash-attn and without tensor_parallel: set max_seq_len"
            f" to {shortest} or less",
            "max_seq_len",
        )


def set_windows(model: ExLlamaV2) -> None:
    """Set the windows of a model that is not loaded yet."""
    has_local_table = bool(model.config.rotary_embedding_base_alt)
    for attention, layer in zip(_attentions(model), _layers(model.config), strict=True):
        is_limiting = layer.window is not None and layer.window < model.config.max_seq_len
        # flash-attn counts the keys before a token's own.
        attention.sliding_window = layer.window - 1 if is_limiting and layer.window else 0
        attention.rope_index = int(has_local_table and layer.is_local)


def set_tables(model: ExLlamaV2) -> None:
    """Set the tables of a loaded model. Call this before its first decode step, because exllamav2's
    graphs keep the addresses of the tables. Raises ModelError.
    """
    arch = model.config.arch.lm
    if arch.rope_style == RopeStyle.NONE:
        return
    layers = _layers(model.config)
    rope = read_rope(_read(model.config))
    is_own = (
        rope.kind in OTHERWISE
        or arch.rope_freq_half  # Qwen-VL's frequencies, which exllamav2 rounds to float16
        or (rope.is_hidden and rope.kind == "llama3")
    )
    own = table(model.config, rope, arch.rope_style == RopeStyle.GPTJ) if is_own else None
    contexts = [
        model.get_device_context(i, scratch=False)
        for i, context in enumerate(model.device_context)
        if context is not None
    ]
    with torch.inference_mode():
        for context in contexts:
            if own is not None:
                context.sin[0].copy_(own[0])
                context.cos[0].copy_(own[1])
            if not all(layer.is_rotated for layer in layers):
                context.sin.append(torch.zeros_like(context.sin[0]))
                context.cos.append(torch.ones_like(context.cos[0]))
    for attention, layer in zip(_attentions(model), layers, strict=True):
        if not layer.is_rotated:
            attention.rope_index = len(contexts[0].sin) - 1


def _read(config: ExLlamaV2Config) -> dict[str, Any]:
    return ModelDir.read(config.model_dir).config


def _layers(config: ExLlamaV2Config) -> list[Layer]:
    return read_layers(_read(config), config.num_hidden_layers)


def _attentions(model: ExLlamaV2) -> list[ExLlamaV2Attention]:
    return [
        module.attn if isinstance(module, ExLlamaV2ParallelDecoder) else module
        for module in model.modules
        if isinstance(module, ExLlamaV2Attention | ExLlamaV2ParallelDecoder)
    ]
