"""A model's configuration as exllamav3 reads it, with the names that the generator expects."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from exllamav3 import Config

from switchyard.engine.config import ModelConfig
from switchyard.engine.errors import ModelError
from switchyard.engine.memory.lengths import lengths
from switchyard.engine.model.model_dir import ModelDir
from switchyard.engine.model.shape import read_shape


@dataclass(slots=True)
class Exl3Config:
    """The attributes have the same names as ExLlamaV2Config's."""

    library: Any  # exllamav3's Config
    max_seq_len: int
    max_input_len: int
    max_batch_size: int
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    no_flash_attn: bool = False
    # Only text is supported, so the generator needs no positions of images.
    arch: Any = field(default_factory=lambda: SimpleNamespace(lm=SimpleNamespace(mrope=False)))


def read_config(config: ModelConfig, model_dir: ModelDir, device: str) -> Exl3Config:
    """Raises ModelError."""
    try:
        library = Config.from_directory(str(model_dir.path))
    except (AssertionError, KeyError, TypeError, ValueError) as reason:
        raise ModelError(
            f"ExLlamaV3 can't read the model in {model_dir.path}: {type(reason).__name__}: {reason}"
        ) from reason
    shape = read_shape(model_dir.config)
    found = lengths(config, shape.max_seq_len, library.vocab_size)
    return Exl3Config(
        library,
        found.max_seq_len,
        found.max_input_len,
        found.max_batch_size,
        library.vocab_size,
        shape.hidden_size,
        shape.num_layers,
    )
