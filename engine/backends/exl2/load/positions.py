"""Tables of sines and cosines according to the published formulas, computed in float32 as in
transformers. They are for models for which ExLlamaV2 has no table or computes a different one.
"""

import math
from typing import Any

import torch
from exllamav2 import ExLlamaV2Config

from switchyard.engine.errors import ModelError
from switchyard.engine.model.rope import Rope

# Kinds that ExLlamaV2 0.3.2 computes differently: it derives YaRN's ramp and longrope's scale from
# the served max_seq_len, and ignores the configuration's attention factor.
OTHERWISE = ("longrope", "yarn")
BETA_FAST, BETA_SLOW = 32.0, 1.0  # YaRN's defaults


def frequencies(
    rope: Rope, theta: float, dim: int, max_seq_len: int, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, float]:
    """Returns the radians from one position to the next for each pair of a head's `dim` numbers,
    (dim / 2,), and the factor for sines and cosines. Neither the radians nor the factor includes a
    linear scale, which divides positions. `max_seq_len`: the served length. If this length exceeds
    the original context, longrope uses its long factors even for short texts, because rotated keys
    stay in the cache. Raises ModelError.
    """
    lengths = torch.pow(theta, torch.arange(0, dim, 2, dtype=dtype) / dim)  # positions per radian
    match rope.kind:
        case "llama3":
            return _llama3(1.0 / lengths, rope.settings), 1.0
        case "yarn":
            return _yarn(1.0 / lengths, theta, rope.settings), _yarn_scale(rope.settings)
        case "longrope":
            factors = _longrope(len(lengths), max_seq_len, rope.settings).to(dtype)
            return 1.0 / (factors * lengths), _longrope_scale(rope.settings)
    return 1.0 / lengths, 1.0  # dynamic: its base grows only beyond the model's own context


def table(
    config: ExLlamaV2Config, rope: Rope, is_interleaved: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns sines and cosines in float16, (1, 1, positions, numbers), in ExLlamaV2's layout, on
    the host. Raises ModelError.
    """
    dim = int(config.head_dim * config.partial_rotary_factor)
    theta = config.rotary_embedding_base
    if config.scale_alpha_value != 1.0:
        theta *= config.scale_alpha_value ** (dim / (dim - 2))
    found, scale = frequencies(rope, theta, dim, config.max_seq_len)
    positions = torch.arange(config.max_seq_len, dtype=torch.float32) / config.scale_pos_emb
    angles = torch.outer(positions, found)
    angles = angles.repeat_interleave(2, -1) if is_interleaved else torch.cat((angles, angles), -1)
    sin, cos = angles.sin() * scale, angles.cos() * scale
    return sin[None, None].half(), cos[None, None].half()


def _llama3(plain: torch.Tensor, settings: dict[str, Any]) -> torch.Tensor:
    factor, original = settings["factor"], settings["original_max_position_embeddings"]
    low, high = settings["low_freq_factor"], settings["high_freq_factor"]
    lengths = 2 * math.pi / plain
    smooth = (original / lengths - low) / (high - low)
    between = (1 - smooth) * plain / factor + smooth * plain
    found = torch.where(lengths > original / low, plain / factor, plain)
    return torch.where((lengths <= original / low) & (lengths >= original / high), between, found)


def _yarn(plain: torch.Tensor, theta: float, settings: dict[str, Any]) -> torch.Tensor:
    """Peng et al. 2023, "YaRN: Efficient Context Window Extension of Large Language Models"."""
    original = settings["original_max_position_embeddings"]
    dim = 2 * len(plain)

    def pair(rotations: float) -> float:
        """Returns the index, with a fraction, of the pair that makes this number of rotations
        within the original context.
        """
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    first = pair(settings.get("beta_fast") or BETA_FAST)
    last = pair(settings.get("beta_slow") or BETA_SLOW)
    if settings.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    last = last + 0.001 if first == last else last
    ramp = ((torch.arange(len(plain), dtype=plain.dtype) - first) / (last - first)).clamp(0, 1)
    factor: float = settings["factor"]
    return plain / factor * ramp + plain * (1 - ramp)


def _yarn_scale(settings: dict[str, Any]) -> float:
    def scale(mscale: float = 1.0) -> float:
        factor = settings["factor"]
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

    if settings.get("attention_factor") is not None:
        return float(settings["attention_factor"])
    own, all_dim = settings.get("mscale"), settings.get("mscale_all_dim")
    return scale(own) / scale(all_dim) if own and all_dim else scale()


def _longrope(size: int, max_seq_len: int, settings: dict[str, Any]) -> torch.Tensor:
    """Ding et al. 2024, "LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens"."""
    is_long = max_seq_len > settings["original_max_position_embeddings"]
    name = "long_factor" if is_long else "short_factor"
    factors = torch.tensor(settings[name], dtype=torch.float32)
    if factors.shape != (size,):
        raise ModelError(f"config.json: {name} must be {size} numbers")
    return factors


def _longrope_scale(settings: dict[str, Any]) -> float:
    if settings.get("attention_factor") is not None:
        return float(settings["attention_factor"])
    original = settings["original_max_position_embeddings"]
    factor = settings.get("factor")
    if factor is None:
        factor = settings.get("max_position_embeddings", original) / original
    return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
