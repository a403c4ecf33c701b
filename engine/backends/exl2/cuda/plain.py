"""Decides from a model's layers whether its passes can be captured as CUDA graphs."""

from typing import Any

from exllamav2.attn import ExLlamaV2Attention
from exllamav2.embedding import ExLlamaV2Embedding
from exllamav2.layernorm import ExLlamaV2LayerNorm
from exllamav2.linear import ExLlamaV2Linear
from exllamav2.mlp import ExLlamaV2MLP
from exllamav2.parallel_decoder import ExLlamaV2ParallelDecoder
from exllamav2.pos_embedding import ExLlamaV2PosEmbedding
from exllamav2.rmsnorm import ExLlamaV2RMSNorm

from switchyard.engine.backends.exl2.cuda.experts import is_dense

PLAIN = (
    ExLlamaV2Attention,
    ExLlamaV2MLP,
    ExLlamaV2LayerNorm,
    ExLlamaV2Linear,
    ExLlamaV2ParallelDecoder,
    ExLlamaV2PosEmbedding,
    ExLlamaV2RMSNorm,
)


def can_capture(model: Any) -> bool:
    """Whether all passes of the model launch the same work, which is true if it has only plain
    layers, on one device.
    """
    devices = {module.device_idx for module in model.modules[1:]}
    return is_plain(model) and len(devices) == 1 and not model.tp_context


def is_plain(model: Any) -> bool:
    """Whether the model has only plain layers. Layers with many experts aren't plain, because the
    host must know which experts are chosen. The model need not be loaded.
    """
    embedding, *modules = model.modules
    return isinstance(embedding, ExLlamaV2Embedding) and all(
        isinstance(module, PLAIN) or is_dense(module) for module in modules
    )
