"""What ExLlamaV2 0.3.2 would read wrongly from a config.json, without a word."""

from typing import Any

from exllamav2 import ExLlamaV2Config

from switchyard.engine.errors import ModelError
from switchyard.engine.model.rope import read_rope


def check(exl2_config: ExLlamaV2Config, model_config: dict[str, Any]) -> None:
    """Raises ModelError where the model would load and its text be wrong. Mends `exl2_config`
    where that is enough.
    """
    rope = read_rope(model_config)
    if rope.is_hidden and rope.kind not in ("default", "dynamic"):
        raise ModelError(
            f"config.json has a {rope.kind} rotary embedding in rope_parameters, where ExLlamaV2"
            " doesn't look: write it as rope_theta and rope_scaling"
        )
    if rope.theta is not None:
        exl2_config.rotary_embedding_base = rope.theta
