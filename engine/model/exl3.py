"""Decides, from config.json and the names of the tensors, which models ExLlamaV3 computes. These
are EXL3 models, and float16 models whose architecture ExLlamaV2 doesn't know.
"""

import re
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from switchyard.engine.config import CACHE_BITS, ModelConfig
from switchyard.engine.errors import ModelError
from switchyard.engine.model.architectures import ACTIVATIONS, architecture_of

VERSION = (1, 6, 5)
MOST_BITS = 8

# Architectures that ExLlamaV3 computes with only pages of keys and values.
PLAIN = (
    *("ApertusForCausalLM", "ArceeForCausalLM", "Cohere2ForCausalLM", "CohereForCausalLM"),
    *("Dots1ForCausalLM", "Ernie4_5_ForCausalLM", "Ernie4_5_MoeForCausalLM", "Exaone4ForCausalLM"),
    *("Gemma2ForCausalLM", "Gemma3ForConditionalGeneration"),
    *("Glm4ForCausalLM", "Glm4MoeForCausalLM", "HyperCLOVAXForCausalLM", "IQuestCoderForCausalLM"),
    *("LlamaForCausalLM", "MiMoForCausalLM", "MiniMaxM2ForCausalLM", "Ministral3ForCausalLM"),
    *("Mistral3ForConditionalGeneration", "MistralForCausalLM", "MixtralForCausalLM"),
    *("Olmo3ForCausalLM", "Phi3ForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"),
    *("Qwen3MoeForCausalLM", "SeedOssForCausalLM", "SmolLM3ForCausalLM", "SolarOpenForCausalLM"),
)
# Those that it computes with a state for each text, or with windows as rings.
STATEFUL = (
    *("AfmoeForCausalLM", "BailingMoeV3ForCausalLM", "DeepseekV4ForCausalLM"),
    *("Gemma4ForConditionalGeneration", "Gemma4UnifiedForConditionalGeneration"),
    *("Glm5NextForConditionalGeneration", "GptOssForCausalLM", "KimiLinearForCausalLM"),
    *("LagunaForCausalLM", "Lfm2ForCausalLM", "Lfm2MoeForCausalLM"),
    *("Lfm2VlForConditionalGeneration", "MiMoV2ForCausalLM", "MuseGlimmerForConditionalGeneration"),
    *("NemotronHForCausalLM", "NemotronH_Omni_Reasoning_V3", "OlmoHybridForCausalLM"),
    *("Qwen3NextForCausalLM", "Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"),
    *("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"),
    *("Qwen4ExpForConditionalGeneration", "Spark2_5ForCausalLM", "Step3p5ForCausalLM"),
    "Step3p7ForConditionalGeneration",
)
# Those that it computes with other caches, with positions of images, or as drafts for others.
OTHERS = (
    *("DFlash2DraftModel", "DFlashDraftModel", "DFlashLagunaForCausalLM", "DeciLMForCausalLM"),
    *("DeepseekV3ForCausalLM", "Gemma4AssistantForCausalLM", "Glm4MoeLiteForCausalLM"),
    "Gemma3ForCausalLM",  # its text-only form: 1.6.5 looks for other names of tensors
    *("Glm4vForConditionalGeneration", "Glm4vMoeForConditionalGeneration", "GlmMoeDsaForCausalLM"),
    *("HCXVisionV2ForCausalLM", "HYV3ForCausalLM", "MuseGlimmerAssistantModel"),
    *("Qwen2_5_VLForConditionalGeneration", "Qwen3VLForConditionalGeneration"),
    "Qwen3VLMoeForConditionalGeneration",
)
EVERY = (*PLAIN, *STATEFUL, *OTHERS)
REFUSED = {  # settings, and why
    "tensor_parallel": "one GPU holds the whole model",
    "gpu_split": "one GPU holds the whole model",
    "loras": "only ExLlamaV2 supports LoRAs",
    "rope_alpha": "it always uses the model's own scaling",
    "rope_scale": "it always uses the model's own scaling",
    "draft_model": "only ExLlamaV2 can guess tokens",
    "ngram_draft": "only ExLlamaV2 can guess tokens",
}


def is_exl3(model_config: dict[str, Any]) -> bool:
    """Whether ExLlamaV3 computes the model, unless the `backend` setting says otherwise."""
    if (method := _method(model_config)) is not None:
        return method == "exl3"
    name = architecture_of(model_config)
    return name not in ACTIVATIONS and name in EVERY


def is_by_exl3(config: ModelConfig, model_config: dict[str, Any]) -> bool:
    """Whether ExLlamaV3 computes the model. Raises ModelError if the chosen backend can't compute
    the model.
    """
    usual, method = is_exl3(model_config), _method(model_config)
    if config.backend == "exl2" and usual:
        what = "EXL3 weights" if method else architecture_of(model_config)
        raise ModelError(f"backend exl2 can't read {what}: set backend to auto", "backend")
    if config.backend == "exl3" and not usual:
        if method is not None:
            raise ModelError(
                f"backend exl3 can't read {method.upper()} weights: set backend to auto", "backend"
            )
        check_exl3(model_config)
        return True
    return usual


def _method(model_config: dict[str, Any]) -> str | None:
    quantization = model_config.get("quantization_config")
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    return None if method is None else str(method)


def check_exl3(model_config: dict[str, Any]) -> None:
    """Raises ModelError if config.json shows that ExLlamaV3 can't serve the model."""
    name = architecture_of(model_config)
    if name in STATEFUL:
        raise ModelError(
            f"{name} keeps a state for each sequence, and isn't supported yet. ExLlamaV3 serves"
            f" {', '.join(PLAIN)}"
        )
    if name not in PLAIN:
        why = "is not supported with ExLlamaV3" if name in OTHERS else "is unknown to ExLlamaV3"
        raise ModelError(f"the architecture {name} {why}. ExLlamaV3 supports {', '.join(PLAIN)}")
    quantization = model_config.get("quantization_config") or {}
    for entry in ("bits", "head_bits"):
        bits = quantization.get(entry)
        if isinstance(bits, int | float) and not 1 <= bits <= MOST_BITS:
            raise ModelError(
                f"config.json: {entry} of EXL3 weights is {bits}, but must be from 1 to {MOST_BITS}"
            )
    told = re.match(r"\d+(?:\.\d+)*", str(quantization.get("version", "")))
    if told and tuple(map(int, told[0].split("."))) > VERSION:
        raise ModelError(
            f"the weights were written by exllamav3 {told[0]}, which is newer than"
            f" {'.'.join(map(str, VERSION))}, the version here: use weights from an older version"
        )


def check_exl3_tensors(root: Path, names: Iterable[str]) -> None:
    """Raises ModelError if a quantized matrix lacks one of its parts."""
    there = set(names)
    parts = (("trellis", "trellis"), ("suh", "su"), ("svh", "sv"))  # and their older names
    every = {part for pair in parts for part in pair}
    for matrix in sorted({n.rpartition(".")[0] for n in there if n.rpartition(".")[2] in every}):
        for new, old in parts:
            if not there & {f"{matrix}.{new}", f"{matrix}.{old}"}:
                raise ModelError(f"the files in {root} lack {matrix}.{new}: is a file missing?")


def check_settings(config: ModelConfig, model_config: dict[str, Any]) -> None:
    """Raises ModelError for a setting that the model's backend would ignore."""
    if is_by_exl3(config, model_config):
        check_exl3_settings(config)
        return
    for mode in config.cache_mode:
        if mode not in CACHE_BITS:
            raise ModelError(
                f"cache_mode {mode} is for EXL3 models only: use {', '.join(CACHE_BITS)}",
                "cache_mode",
            )


def check_exl3_settings(config: ModelConfig) -> None:
    """Raises ModelError for a setting that ExLlamaV3 would ignore."""
    for field in fields(config):
        if field.name in REFUSED and getattr(config, field.name) not in (field.default, (), False):
            raise ModelError(
                f"{field.name} doesn't work with ExLlamaV3: {REFUSED[field.name]}", field.name
            )
