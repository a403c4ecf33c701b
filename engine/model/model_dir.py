"""Reads the JSON of a model directory in Hugging Face layout, without torch."""

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from switchyard.engine.errors import ModelError
from switchyard.engine.model.architectures import check_architecture
from switchyard.engine.model.rope import read_rope
from switchyard.engine.model.weights import check_files, check_format

SUFFIXES = (".json", ".jinja", ".model", ".safetensors")  # of the files that a model is read from
MOST = 2**24  # upper limit of all counts in config.json
COUNTS = (
    *("hidden_size", "d_model", "n_embd", "vocab_size", "head_dim"),
    *("intermediate_size", "moe_intermediate_size", "n_inner"),
    *("num_hidden_layers", "n_layers", "n_layer"),
    *("num_attention_heads", "n_heads", "n_head", "num_key_value_heads"),
    *("max_position_embeddings", "max_sequence_length", "max_seq_len", "n_positions"),
    "original_max_position_embeddings",
)
MEASURES = (
    *("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"),
    *("rope_theta", "factor"),
)
PARTS = ("text_config", "rope_parameters", "rope_scaling")  # of config.json, with counts


@dataclass(frozen=True, slots=True)
class ModelDir:
    path: Path
    config: dict[str, Any]
    tokenizer_config: dict[str, Any]
    eos_token_ids: tuple[int, ...]  # of config.json and generation_config.json together
    chat_template: str | None  # Jinja source
    created: int  # Unix seconds
    fingerprint: str  # changes with the weights' files and config.json

    @classmethod
    def read(cls, path: str) -> "ModelDir":
        """Raises ModelError, with one line, for a missing or incomplete directory. Also, as far as
        JSON tells, for a model that ExLlamaV2 can't read, or would read wrongly.
        """
        try:
            return cls._read(Path(path))
        except OSError as reason:
            raise ModelError(f"model directory {path} can't be read: {reason}") from None

    @classmethod
    def _read(cls, root: Path) -> "ModelDir":
        path = str(root)
        for file in sorted(root.iterdir()) if root.is_dir() else ():
            # Reading a pipe would block silently.
            if file.suffix in SUFFIXES and file.exists() and not file.is_file():
                raise ModelError(f"{file} is no regular file")
        check_files(root)
        for name in ("config.json", "tokenizer.json"):
            if not (root / name).is_file():
                raise ModelError(
                    f"model directory {path} has no {name}: copy it from the original's files"
                )
        if not any(root.glob("*.safetensors")):
            raise ModelError(f"model directory {path} has no .safetensors file")
        config = _read_json(root / "config.json")
        if not config.get("architectures"):
            raise ModelError(f"{root / 'config.json'} names no architecture")
        check_format(root, config)
        check_architecture(config)
        _check_numbers(root / "config.json", config)
        read_rope(config)
        generation_config = _read_json(root / "generation_config.json", optional=True)
        tokenizer_config = _read_json(root / "tokenizer_config.json", optional=True)
        eos = _token_ids(config) + _token_ids(generation_config)
        return cls(
            path=root,
            config=config,
            tokenizer_config=tokenizer_config,
            eos_token_ids=tuple(dict.fromkeys(eos)),
            chat_template=_chat_template(root, tokenizer_config),
            created=int((root / "config.json").stat().st_mtime),
            fingerprint=_fingerprint(root),
        )

    @property
    def max_seq_len(self) -> int | None:
        """The model's own context in tokens, if config.json has it."""
        length = self.config.get("max_position_embeddings")
        return length if isinstance(length, int) and length > 0 else None

    @property
    def vocab_size(self) -> int | None:
        """The number of tokens that the weights know, if config.json has it."""
        for part in (self.config, self.config.get("text_config")):
            if isinstance(part, dict) and isinstance(size := part.get("vocab_size"), int):
                return size
        return None

    @property
    def all_templates(self) -> str:
        """The chat template, and those that tokenizer_config.json has for other uses, as a text."""
        told = self.tokenizer_config.get("chat_template")
        told = told if isinstance(told, list) else []
        others = [t.get("template") for t in told if isinstance(t, dict)]
        return "\n".join(t for t in (self.chat_template, *others) if isinstance(t, str))

    @property
    def format(self) -> str:
        """Format of the weights, with the mean number of bits if config.json has it."""
        told = self.config.get("quantization_config")
        quantization = told if isinstance(told, dict) else {}
        method = quantization.get("quant_method")
        if method is None:
            return str(self.config.get("torch_dtype") or self.config.get("dtype") or "float16")
        bits = quantization.get("bits")
        return f"{str(method).upper()} of {bits} bits" if bits else str(method).upper()

    def special_token(self, name: str) -> str | None:
        """Text of a token that tokenizer_config.json names, such as `bos_token`."""
        token = self.tokenizer_config.get(name)
        if isinstance(token, dict):  # a serialized AddedToken
            token = token.get("content")
        return token if isinstance(token, str) else None


def _read_json(path: Path, optional: bool = False) -> dict[str, Any]:
    if optional and not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as reason:
        raise ModelError(f"{path} can't be read: {reason}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} is not a JSON object")
    return value


def _check_numbers(path: Path, config: dict[str, Any]) -> None:
    """Raises ModelError for impossible numbers. The loader checks other types and gaps."""
    for part in (config, *(config.get(name) for name in PARTS)):
        if not isinstance(part, dict):
            continue
        for name in (*COUNTS, *MEASURES):
            value = part.get(name)
            if not isinstance(value, int | float):
                continue
            if name in MEASURES and not 0 < value < math.inf:
                raise ModelError(f"{path}: {name} is {value}, and must be above 0")
            is_count = 1 <= value <= MOST and value == int(value) and value is not True
            if name in COUNTS and not is_count:
                raise ModelError(
                    f"{path}: {name} is {value}, and must be a whole number from 1 to {MOST}"
                )


def _fingerprint(root: Path) -> str:
    """A hash of config.json, and of names, sizes and times of the model's other files: reading the
    weights would take as long as a load.
    """
    files = [path for path in sorted(root.iterdir()) if path.suffix in SUFFIXES]
    digest = hashlib.sha256((root / "config.json").read_bytes())
    for path in files:
        if path.name != "config.json":
            stat = path.stat()
            digest.update(repr((path.name, stat.st_size, stat.st_mtime_ns)).encode())
    return f"fp_{digest.hexdigest()[:12]}"


def _token_ids(config: dict[str, Any]) -> list[int]:
    value = config.get("eos_token_id")
    values = value if isinstance(value, list) else [value]
    return [v for v in values if isinstance(v, int)]


def _chat_template(root: Path, tokenizer_config: dict[str, Any]) -> str | None:
    """The template of chat_template.jinja, as in newer models, else of tokenizer_config.json."""
    file = root / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text("utf-8")
        except ValueError as reason:
            raise ModelError(f"{file} can't be read: {reason}") from None
    template = tokenizer_config.get("chat_template")
    if isinstance(template, list):  # several templates, by name
        named = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None
