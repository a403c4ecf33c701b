"""The attention window of each layer, and whether the layer has rotary embeddings. Both are read
from config.json as transformers reads them, whereas ExLlamaV2 reads only some of these settings,
for some families.
"""

from dataclasses import dataclass
from typing import Any

from switchyard.engine.errors import ModelError
from switchyard.engine.model.architectures import text_config

ABSENT = object()

# The default windows of transformers.
WINDOWS = {
    "Cohere2ForCausalLM": 4096,
    "Gemma2ForCausalLM": 4096,
    "Gemma3ForConditionalGeneration": 4096,
    "LlavaForConditionalGeneration": 4096,  # a Mistral
    "Mistral3ForConditionalGeneration": 4096,
    "MistralForCausalLM": 4096,
    "MixtralForCausalLM": None,
    "Phi3ForCausalLM": None,
    "Starcoder2ForCausalLM": None,
}
# Default period of layers without a window.
PATTERNS = {"Cohere2ForCausalLM": 4, "Gemma2ForCausalLM": 2, "Gemma3ForConditionalGeneration": 6}
QWEN = (
    *("Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"),
    *("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"),
)
FIRST_WITH_WINDOW = 28  # Qwen's default of max_window_layers; Qwen-VL's is 80
KINDS = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True)
class Layer:
    window: int | None  # keys that a token sees, itself included; None: all
    is_rotated: bool = True
    is_local: bool = False  # of the windowed kind, whatever the window's length


def read_layers(model_config: dict[str, Any], num_layers: int) -> list[Layer]:
    """The layers of a known architecture. Raises ModelError."""
    [name] = model_config["architectures"]
    text = text_config(model_config)
    window, is_local = _window(name, text), _local(name, text, num_layers)
    if window is not None and (not isinstance(window, int) or window < 2):
        raise ModelError(f"config.json: a sliding_window of {window!r} is not a number of tokens")
    return [
        Layer(
            window if local else None,
            is_rotated=name != "Cohere2ForCausalLM" or (local and window is not None),
            is_local=local,
        )
        for local in is_local
    ]


def _window(name: str, text: dict[str, Any]) -> Any:
    if name in QWEN:
        return text.get("sliding_window", 4096) if text.get("use_sliding_window") else None
    return text.get("sliding_window", WINDOWS[name]) if name in WINDOWS else None


def _local(name: str, text: dict[str, Any], num_layers: int) -> list[bool]:
    """For each layer, whether its attention has the window."""
    told = text.get("layer_types")
    if told is not None and (name in PATTERNS or (name in QWEN and name != "Qwen3MoeForCausalLM")):
        if len(told) != num_layers or not set(told) <= set(KINDS):
            raise ModelError(
                f"config.json: layer_types must name {' or '.join(KINDS)} for each of"
                f" {num_layers} layers"
            )
        return [kind == KINDS[1] for kind in told]
    if name in PATTERNS:
        pattern = PATTERNS[name]
        if name != "Gemma2ForCausalLM":
            pattern = text.get("sliding_window_pattern") or pattern
        return [(i + 1) % pattern != 0 for i in range(num_layers)]
    if name in QWEN and name != "Qwen3MoeForCausalLM":
        default = 80 if "VL" in name else FIRST_WITH_WINDOW
        first = text.get("max_window_layers", default)
        return [i >= first for i in range(num_layers)]
    return [name in WINDOWS or name in QWEN] * num_layers
