"""Reads the JSON files in a model directory in Hugging Face layout, without torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from switchyard.engine.errors import ModelError
from switchyard.engine.model.architectures import check_architecture
from switchyard.engine.model.contents import (
    MAX_TEMPLATE,
    check_contents,
    fingerprint,
    read_json,
    read_text,
    template_files,
)
from switchyard.engine.model.exl3 import check_exl3, is_exl3
from switchyard.engine.model.rope import read_rope
from switchyard.engine.model.shape import Shape, read_shape
from switchyard.engine.model.tensors import planned_sizes
from switchyard.engine.model.weights import check_files, check_format

MOST_LAYERS = 1024
LAYERS = ("num_hidden_layers", "n_layers", "n_layer")
MOST = 2**24  # upper limit of all counts in config.json
COUNTS = (
    *("hidden_size", "d_model", "n_embd", "vocab_size", "head_dim"),
    *("intermediate_size", "moe_intermediate_size", "n_inner"),
    *LAYERS,
    *("num_attention_heads", "n_heads", "n_head", "num_key_value_heads"),
    *("max_position_embeddings", "max_sequence_length", "max_seq_len", "n_positions"),
    "original_max_position_embeddings",
)
MEASURES = (
    *("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"),
    *("rope_theta", "factor"),
)
PARTS = ("text_config", "rope_parameters", "rope_scaling")  # of config.json, which contain counts
DEFAULT = "default"  # the name of a single chat template


@dataclass(frozen=True, slots=True)
class TemplateSource:
    """The Jinja source, and the path of its file relative to the model directory."""

    text: str
    file: str


@dataclass(frozen=True, slots=True)
class ModelDir:
    path: Path
    config: dict[str, Any]
    tokenizer_config: dict[str, Any]
    eos_token_ids: tuple[int, ...]  # of config.json and generation_config.json together
    chat_templates: Mapping[str, TemplateSource]  # by name; if there are any, one is the default
    created: int  # Unix seconds
    fingerprint: str  # changes with the files, see `contents.fingerprint`
    size: int = 0  # bytes of the weights' files

    @classmethod
    def read(cls, path: str) -> "ModelDir":
        """Raises a one-line ModelError for a missing or incomplete directory. Also raises it for a
        model that ExLlamaV2 can't read or would read wrongly, to the extent that the JSON files
        show it.
        """
        try:
            return cls._read(Path(path))
        except OSError as reason:
            raise ModelError(f"model directory {path} can't be read: {reason}") from None

    @classmethod
    def _read(cls, root: Path) -> "ModelDir":
        path = str(root)
        check_contents(root)
        check_files(root)
        for name in ("config.json", "tokenizer.json"):
            if not (root / name).is_file():
                raise ModelError(
                    f"model directory {path} has no {name}: copy it from the original model"
                )
        if not any(root.glob("*.safetensors")):
            raise ModelError(f"model directory {path} has no .safetensors file")
        config = read_config(path)
        generation_config = read_json(root / "generation_config.json", optional=True)
        tokenizer_config = read_json(root / "tokenizer_config.json", optional=True)
        size = _vocab_size(config)
        eos = _ends_of(root / "config.json", config, size)
        eos += _ends_of(root / "generation_config.json", generation_config, size)
        return cls(
            path=root,
            config=config,
            tokenizer_config=tokenizer_config,
            eos_token_ids=tuple(dict.fromkeys(eos)),
            chat_templates=_read_templates(root, tokenizer_config),
            created=int((root / "config.json").stat().st_mtime),
            fingerprint=fingerprint(root),
            size=sum(file.stat().st_size for file in root.glob("*.safetensors")),
        )

    @property
    def chat_template(self) -> str | None:
        """The Jinja source of the default template."""
        source = self.chat_templates.get(DEFAULT)
        return None if source is None else source.text

    @property
    def max_seq_len(self) -> int | None:
        """The model's own context in tokens, if config.json specifies it."""
        length = self.config.get("max_position_embeddings")
        return length if isinstance(length, int) and length > 0 else None

    @property
    def vocab_size(self) -> int | None:
        """The size of the weights' vocabulary, if config.json specifies it."""
        return _vocab_size(self.config)

    @property
    def all_templates(self) -> str:
        """The chat template, joined with the templates for other uses in tokenizer_config.json."""
        told = self.tokenizer_config.get("chat_template")
        told = told if isinstance(told, list) else []
        others = [t.get("template") for t in told if isinstance(t, dict)]
        return "\n".join(t for t in (self.chat_template, *others) if isinstance(t, str))

    @property
    def format(self) -> str:
        """The format of the weights, with the mean number of bits if config.json specifies it."""
        told = self.config.get("quantization_config")
        quantization = told if isinstance(told, dict) else {}
        method = quantization.get("quant_method")
        if method is None:
            return str(self.config.get("torch_dtype") or self.config.get("dtype") or "float16")
        bits = quantization.get("bits")
        return f"{str(method).upper()} of {bits} bits" if bits else str(method).upper()

    @property
    def shape(self) -> Shape | None:
        """The sizes of the layers, or None if config.json lacks one of them."""
        try:
            return read_shape(self.config)
        except (ModelError, LookupError):
            return None

    @property
    def num_parameters(self) -> int:
        """The number of parameters according to the shape, without biases, or 0 if unknown."""
        if (shape := self.shape) is None:
            return 0
        sizes = planned_sizes(shape, 16)
        if self.config.get("tie_word_embeddings") is True:
            del sizes["lm_head.weight"]
        return sum(sizes.values()) // 2

    def special_token(self, name: str) -> str | None:
        """The text of a token that tokenizer_config.json names, such as `bos_token`."""
        token = self.tokenizer_config.get(name)
        if isinstance(token, dict):  # a serialized AddedToken
            token = token.get("content")
        return token if isinstance(token, str) else None


def read_config(path: str) -> dict[str, Any]:
    """The config.json of a model directory, which may lack all other files. Raises ModelError."""
    root = Path(path)
    file = root / "config.json"
    if not file.is_file():
        check_files(root)
        raise ModelError(
            f"model directory {path} has no config.json: copy it from the original model"
        )
    config = read_json(file)
    if not config.get("architectures"):
        raise ModelError(f"{file} names no architecture: copy it from the original model")
    check_format(root, config)
    if is_exl3(config):
        check_exl3(config)
    else:
        check_architecture(config)
    _check_numbers(file, config)
    if not is_exl3(config):  # ExLlamaV3 reads the rotary embedding itself
        read_rope(config)
    return config


def _check_numbers(path: Path, config: dict[str, Any]) -> None:
    """Raises ModelError for impossible numbers. The loader checks for wrong types and missing
    values.
    """
    for part in (config, *(config.get(name) for name in PARTS)):
        if not isinstance(part, dict):
            continue
        for name in (*COUNTS, *MEASURES):
            value = part.get(name)
            if not isinstance(value, int | float):
                continue
            if name in MEASURES and not 0 < value < math.inf:
                raise ModelError(f"{path}: {name} is {value}, but must be above 0")
            most = MOST_LAYERS if name in LAYERS else MOST
            is_count = 1 <= value <= most and value == int(value) and value is not True
            if name in COUNTS and not is_count:
                raise ModelError(
                    f"{path}: {name} is {value}, but must be a whole number from 1 to {most}"
                )


def _vocab_size(config: dict[str, Any]) -> int | None:
    for part in (config, config.get("text_config")):
        if isinstance(part, dict) and isinstance(size := part.get("vocab_size"), int):
            return size
    return None


def _ends_of(path: Path, content: dict[str, Any], size: int | None) -> list[int]:
    """The end tokens that a file names. `size`: the size of the vocabulary. Raises ModelError."""
    value = content.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for one in ids:
        if type(one) is not int:
            raise ModelError(
                f"{path}: eos_token_id is {value!r}, but must be one token id or several"
            )
        if size is not None and not 0 <= one < size:
            raise ModelError(
                f"{path}: eos_token_id has {one}, but vocab_size in config.json is {size}"
            )
    return ids


def _read_templates(root: Path, tokenizer_config: Mapping[str, Any]) -> dict[str, TemplateSource]:
    """The chat templates by name. A single template is the default. The result is empty without any
    template.

    The templates come from the first of these sources that has any: chat_template.jinja with the
    files in additional_chat_templates, tokenizer_config.json, chat_template.json. Raises ModelError
    if a template can't be read, or if there are several templates without a default.
    """
    found = _of_files(root)
    if not found:
        found = _of_value(root / "tokenizer_config.json", tokenizer_config.get("chat_template"))
    if not found:
        file = root / "chat_template.json"
        found = _of_value(file, read_json(file, optional=True).get("chat_template"))
    for source in found.values():
        if len(source.text) > MAX_TEMPLATE:
            raise ModelError(
                f"{root / source.file}: a chat template has {len(source.text)} characters; at most"
                f" {MAX_TEMPLATE} are allowed"
            )
    if found and DEFAULT not in found:
        files = ", ".join(dict.fromkeys(source.file for source in found.values()))
        names = ", ".join(found)
        raise ModelError(f"{root / files}: none of the chat templates ({names}) is the default")
    return found


def _of_files(root: Path) -> dict[str, TemplateSource]:
    files = {path.stem: path for path in template_files(root)}
    if (root / "chat_template.jinja").is_file():
        files = {DEFAULT: root / "chat_template.jinja", **files}
    found = {}
    for name, path in files.items():
        found[name] = TemplateSource(read_text(path), str(path.relative_to(root)))
    return found


def _of_value(path: Path, value: Any) -> dict[str, TemplateSource]:
    """The templates in a JSON file's `chat_template`, which is a text, or several texts by name."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {DEFAULT: TemplateSource(value, path.name)}
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        value = {item.get("name"): item.get("template") for item in value}
    if not isinstance(value, dict) or not all(
        isinstance(part, str) for pair in value.items() for part in pair
    ):
        message = "chat_template must be a text, or a list of objects with name and template"
        raise ModelError(f"{path}: {message}")
    return {name: TemplateSource(text, path.name) for name, text in value.items()}
