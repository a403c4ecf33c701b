"""The settings of several models: tables `[[models]]`, and settings for all of them."""

import os
import pathlib
from collections import Counter
from dataclasses import replace
from typing import Self

import pydantic
from pydantic import Field

from switchyard import engine
from switchyard.app.engine_settings import EngineSettings, ModelSettings


class TableModel(ModelSettings, extra="forbid"):
    """A table `[[models]]`. Settings outside the tables are its defaults."""

    model: str = Field(description="Directory of the model.")
    aliases: list[str] = Field([], description="Other names of the model, as in `model_aliases`.")
    load: engine.Policy = Field(
        "start",
        description="When it is loaded: with the server (`start`), by the first request that names"
        " it (`demand`), or by an operator alone (`manual`).",
    )
    idle_timeout: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="Seconds without a job after which it is unloaded. 0: never.",
    )
    drain: float = Field(
        60.0,
        ge=0,
        le=86400,
        allow_inf_nan=False,
        description="Seconds for which its jobs may continue when it is unloaded or replaced.",
    )

    @pydantic.field_validator("aliases")
    @classmethod
    def _are_aliases(cls, value: list[str]) -> list[str]:
        for alias in value:
            engine.check_alias(alias)
        return value

    def to_config(self) -> engine.ModelConfig:
        return _without_copies(super().to_config())

    def served(self) -> engine.Served:
        """The model for the engine. Raises engine.ModelError, which names the model."""
        try:
            config = self.to_config()
        except engine.ModelError as error:
            raise engine.ModelError(f"models: {self.model_name}: {error}", error.param) from None
        return engine.Served(config, self.load, self.idle_timeout, self.drain, self)


class TableSettings(EngineSettings):
    models: list[TableModel] = Field(
        [],
        description="Several models: tables `[[models]]`, each with a `model` and any settings of a"
        " model. Empty: the one that `model` names.",
    )
    default_model: str | None = Field(
        None, description="The model for requests that name none. Default: the first."
    )
    models_dir: str = Field(
        "",
        description="Directory of further model directories, which operators may load by name."
        " Empty: none.",
    )
    max_loaded: int = Field(
        0,
        ge=0,
        description="Maximum number of loaded models; another evicts the least recently used."
        " 0: as memory allows.",
    )
    load_wait: float = Field(
        120.0,
        ge=0,
        le=86400,
        allow_inf_nan=False,
        description="Seconds that a request waits for its model to load; then 503.",
    )
    model_aliases: dict[str, str] = Field(
        default={},
        description="Other names for models, each with its model: in the file a table"
        " `[model_aliases]`. A `*` at the end stands for any rest. A served name goes first, then"
        " an alias without `*`, then the longest with `*`. Lists of models omit aliases.",
    )

    def to_config(self) -> engine.ModelConfig:
        config = super().to_config()
        return _without_copies(config) if self.models_dir else config

    @pydantic.field_validator("model_aliases")
    @classmethod
    def _are_aliases(cls, value: dict[str, str]) -> dict[str, str]:
        for alias in value:
            engine.check_alias(alias)
        return value

    @pydantic.field_validator("models", mode="before")
    @classmethod
    def _are_tables(cls, value: object) -> object:
        if isinstance(value, dict):
            raise ValueError("must be tables [[models]], with two brackets on each side")
        return value

    @pydantic.model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.models and {"model", "name"} & self.model_fields_set:
            raise ValueError("models: there can't be tables [[models]] and a model beside them")
        names = [one.model_name for one in self.models]
        called = Counter([*names, *(a for one in self.models for a in one.aliases)])
        called.update(list(self.model_aliases))
        for name, number in called.items():
            if self.models and number > 1:
                raise ValueError(f"models: {name!r} is the name or alias of more than one")
        if self.models and self.default_model is not None and self.default_model not in names:
            raise ValueError(
                f"default_model: {self.default_model!r} is none of {engine.listed(names)}"
            )
        try:
            engine.check_aliases(self.aliases(), names or [self.model_name])
        except engine.ModelError as error:
            raise ValueError(str(error)) from None
        num_first = sum(one.load == "start" for one in self.models)
        least = num_first + (num_first < len(self.models))
        if 0 < self.max_loaded < least:
            raise ValueError(
                f"max_loaded: {num_first} models stay loaded, so it must be at least {least}"
            )
        if self.models_dir and not os.path.isdir(self.models_dir):
            raise ValueError(f"models_dir: {self.models_dir!r} is no directory")
        return self

    @property
    def max_jobs(self) -> int:
        """Most jobs that all models hold together."""
        models: list[ModelSettings] = [*self.tables()] or [self]
        if self.models_dir:  # one further model at a time
            models.append(self)
        return sum(one.num_engines * one.max_batch_size + one.max_pending for one in models)

    def tables(self) -> list[TableModel]:
        """All tables, each completed with its defaults."""
        return [self.complete(one) for one in self.models]

    def complete(self, model: TableModel) -> TableModel:
        """A table, completed with the settings outside the tables."""
        own = {"model", "name", *model.model_fields_set}
        rest = {name: getattr(self, name) for name in ModelSettings.model_fields if name not in own}
        return model.model_copy(update=rest)

    def served(self) -> list[engine.Served]:
        """All models, at least one. Raises engine.ModelError, which names the wrong setting."""
        if not self.models:
            return [engine.Served(self.engine_config())]
        return [one.served() for one in self.tables()]

    def aliases(self) -> dict[str, str]:
        """The model of each alias, over all models."""
        own = {alias: one.model_name for one in self.models for alias in one.aliases}
        return own | self.model_aliases

    def directories(self) -> dict[str, str]:
        """The paths of the models in `models_dir`, by name."""
        if not self.models_dir:
            return {}
        root = pathlib.Path(self.models_dir)
        return {
            path.name: str(path)
            for path in sorted(root.iterdir())
            if path.is_dir() and os.path.isfile(path / "config.json")
        }


def _without_copies(config: engine.ModelConfig) -> engine.ModelConfig:
    """For one of several models: copies of weights would take the memory of the others."""
    if config.unpacked_weights != "auto":
        return config
    return replace(config, unpacked_weights="off")
