"""The settings of a model, with defaults and descriptions from the engine's `ModelConfig`."""

import dataclasses
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any, Literal, Self

import pydantic
import pydantic_settings
from pydantic import Field

from switchyard import engine
from switchyard.app.parts.call_formats import FORMATS
from switchyard.settings import place

DEFAULT_MODEL = str(pathlib.Path(__file__).parent.parent / "models" / "demo")

_OPTIONS = {one.name: one for one in dataclasses.fields(engine.ModelConfig)}


def _of_engine(name: str, **more: Any) -> Any:
    """A setting for the engine's option `name`. `more`: arguments for pydantic's `Field`."""
    own = _OPTIONS[name]
    default = list(own.default) if isinstance(own.default, tuple) else own.default
    return Field(default, description=own.metadata["doc"], **more)


class LoraSettings(pydantic.BaseModel, extra="forbid"):
    path: str
    name: str | None = None
    scaling: float = Field(1.0, allow_inf_nan=False)


class ModelSettings(pydantic.BaseModel):
    """The settings of one model. Each option of `ModelConfig` has a setting of the same name,
    except that the setting for `path` is called `model`.
    """

    model: str = Field(
        DEFAULT_MODEL,
        description="Directory of the model. Default: the project's demo model, `models/demo`.",
    )
    name: str | None = Field(
        None, description="The model's name for clients. Default: the directory's name."
    )
    device: engine.Device = _of_engine("device")
    backend: engine.Library = _of_engine("backend")
    link: engine.LinkKind = _of_engine("link")
    at: list[str] = _of_engine("at")
    engine_key_file: str | None = _of_engine("engine_key_file")
    gpus: list[int] = _of_engine("gpus")
    replicas: int = _of_engine("replicas", ge=1, le=64)
    max_seq_len: int | None = _of_engine("max_seq_len")
    rope_scale: float | None = _of_engine("rope_scale")
    rope_alpha: float | None = _of_engine("rope_alpha")
    cache_tokens: int | Literal["auto"] = _of_engine("cache_tokens")
    cache_mode: list[engine.CacheMode] = _of_engine("cache_mode")
    gpu_reserve: float = _of_engine("gpu_reserve")
    gpu_split: list[float] = _of_engine("gpu_split")
    unpacked_weights: float | Literal["auto", "off"] = _of_engine("unpacked_weights")
    products: Literal["auto", "exllamav2"] = _of_engine("products")
    tensor_parallel: bool = _of_engine("tensor_parallel")
    loras: list[LoraSettings] = _of_engine("loras")
    draft_model: str | None = _of_engine("draft_model")
    ngram_draft: bool = _of_engine("ngram_draft")
    num_draft_tokens: int = _of_engine("num_draft_tokens")
    max_batch_size: int = _of_engine("max_batch_size", le=4096)
    max_pending: int = _of_engine("max_pending")
    max_pending_tokens: int = _of_engine("max_pending_tokens")
    max_priority: int = _of_engine("max_priority", ge=0)
    fair_wait_factor: float = _of_engine("fair_wait_factor")
    silence_timeout: float = _of_engine("silence_timeout")
    hang_timeout: float = _of_engine("hang_timeout")
    hang_exit: float = _of_engine("hang_exit")
    max_chunk_size: int | None = _of_engine("max_chunk_size")
    max_gap_ms: float | None = _of_engine("max_gap_ms")
    default_max_tokens: int | None = _of_engine("default_max_tokens")
    default_repetition_penalty: float = _of_engine("default_repetition_penalty")
    default_frequency_penalty: float = _of_engine("default_frequency_penalty")
    default_stop_on_loop: bool | None = _of_engine("default_stop_on_loop")

    tool_format: str = Field(
        "auto",
        description="Syntax of the model's tool calls: "
        + ", ".join(f"`{name}`" for name in FORMATS)
        + ", or `auto`: the syntax that the chat template shows.",
    )
    reasoning_start: str = Field(
        "<think>",
        description="Start tag of the model's thoughts, at the beginning of its answer or at the"
        " end of the prompt. Empty: thoughts are not separated from the text.",
    )
    reasoning_end: str = Field(
        "</think>",
        description="End tag of the model's thoughts. Empty: thoughts are not separated from the"
        " text.",
    )

    @pydantic.field_validator("model")
    @classmethod
    def _is_named(cls, value: str) -> str:
        if not value.strip():
            raise ValueError(
                "is empty: name a directory, or omit the setting to use the demo model"
            )
        return value

    @pydantic.field_validator("cache_mode", mode="before")
    @classmethod
    def _with_pairs(cls, value: Any) -> Any:
        """Splits the value of an environment variable at the commas between modes, but not at the
        commas inside pairs of bits.
        """
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            return value
        found = re.findall(r"\d+ *, *\d+|[^,]+", ",".join(value))
        return [one.replace(" ", "") for one in found]

    @pydantic.field_validator("cache_mode")
    @classmethod
    def _are_modes(cls, value: list[str]) -> list[str]:
        try:
            for one in value:
                engine.cache_bits(one)
        except engine.ModelError as error:
            raise ValueError(str(error)) from None
        return value

    @pydantic.field_validator("tool_format")
    @classmethod
    def _is_format(cls, value: str) -> str:
        if value != "auto" and value not in FORMATS:
            raise ValueError(f"must be auto or one of {', '.join(FORMATS)}")
        return value

    @property
    def model_name(self) -> str:
        return self.name or _name_of(self.model)

    @property
    def num_engines(self) -> int:
        return max(engine.count_engines(self.at), 1) * self.replicas

    def to_config(self) -> engine.ModelConfig:
        """The engine's configuration of the model. Raises engine.ModelError."""
        options = {name: getattr(self, name) for name in _OPTIONS if name != "path"}
        loras = tuple(
            engine.Lora(one.path, one.name or _name_of(one.path), one.scaling) for one in self.loras
        )
        options |= {"path": self.model, "name": self.model_name, "loras": loras}
        options |= {
            name: tuple(getattr(self, name)) for name in ("at", "cache_mode", "gpu_split", "gpus")
        }
        return engine.ModelConfig(**options)


class EngineSettings(ModelSettings, pydantic_settings.BaseSettings):
    """The settings of a single model, or the defaults of all models."""

    # Where settings are written that come neither from the file nor from a variable.
    _places: dict[str, str] = pydantic.PrivateAttr(default_factory=dict)

    def given_by(self, places: Mapping[str, str]) -> Self:
        """Records where settings were given, for error messages."""
        self._places.update(places)
        return self

    def engine_config(self) -> engine.ModelConfig:
        """Like `to_config`. Raises engine.ModelError with the location of the wrong setting."""
        try:
            return self.to_config()
        except engine.ModelError as error:
            if error.param not in self.model_fields_set:
                raise
            where = self._places.get(error.param) or place(error.param)
            raise engine.ModelError(f"{where}: {error}", error.param) from None


def _name_of(path: str) -> str:
    return os.path.basename(os.path.abspath(path))
