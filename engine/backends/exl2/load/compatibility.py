"""Corrects or refuses settings that ExLlamaV2 0.3.2 would silently misread or compute wrongly."""

from typing import Any

from exllamav2 import ExLlamaV2Config

from switchyard.engine.model.architectures import text_config
from switchyard.engine.model.rope import read_rope


def mend(exl2_config: ExLlamaV2Config, model_config: dict[str, Any]) -> None:
    """Add the settings that ExLlamaV2 needs but doesn't find in config.json. Raises ModelError."""
    rope = read_rope(model_config)
    if rope.theta is not None:
        exl2_config.rotary_embedding_base = rope.theta
    if rope.is_hidden and rope.kind == "linear":
        exl2_config.scale_pos_emb = float(rope.settings["factor"])
    if rope.kind == "yarn":  # YaRN serves the stretched length
        stretched = int(rope.settings["factor"] * rope.settings["original_max_position_embeddings"])
        exl2_config.max_seq_len = max(exl2_config.max_seq_len, stretched)
    local = text_config(model_config).get("rope_local_base_freq")
    if exl2_config.rotary_embedding_base_alt and local is not None:
        exl2_config.rotary_embedding_base_alt = float(local)
    if exl2_config.architecture in ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM"):
        exl2_config.arch.lm.headnorm = "rmsnorm"  # its other norm subtracts the mean
