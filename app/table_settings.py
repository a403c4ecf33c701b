"""The settings of several models: `[[models]]` tables, and settings for all models."""

import ipaddress
import os
import pathlib
import re
from collections import Counter
from dataclasses import replace
from typing import Self
from urllib.parse import quote

import pydantic
from pydantic import Field

from switchyard import engine
from switchyard.app.engine_settings import EngineSettings, ModelSettings

CLUSTER = "cluster"  # value of `at` for engines that the cluster runs
# Ports of Ray; the last range is for its workers.
RAYS_PORTS = (range(6379, 6390), range(10001, 10002), range(20000, 20100))
PRIVATE = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")
# In characters: the paths of Ray's Unix sockets in that directory may have at most 107.
MAX_STATE_DIR = 40


class EngineRange(pydantic.BaseModel, extra="forbid"):
    """The minimum and maximum number of a model's engines in a cluster. The cluster scales between
    them to keep `jobs` jobs per engine.
    """

    min: int = Field(ge=1)
    max: int = Field(ge=1)
    jobs: int | None = Field(None, ge=1)

    @pydantic.model_validator(mode="after")
    def _is_range(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        if self.min < self.max and self.jobs is None:
            raise ValueError(
                "jobs is missing: set the number of jobs per engine for which the cluster scales"
            )
        return self


class ClusterSettings(pydantic.BaseModel, extra="forbid"):
    """The `[cluster]` table, which is the same on every machine."""

    head: ipaddress.IPv4Address
    network: ipaddress.IPv4Network
    ports: str = "7000-7099"
    state_dir: str = "/var/lib/switchyard/cluster"
    run_dir: str = "/run/switchyard"
    allow_public: bool = False

    @pydantic.field_validator("ports")
    @classmethod
    def _are_ports(cls, value: str) -> str:
        ports = _range_of(value)
        if not ports or not 1024 <= ports[0] <= ports[-1] <= 65535:
            raise ValueError(f"{value} must be FIRST-LAST, from 1024 to 65535")
        for taken in RAYS_PORTS:
            if common := range(max(ports[0], taken[0]), min(ports[-1], taken[-1]) + 1):
                raise ValueError(f"{value} includes {common[0]}, which is one of Ray's ports")
        return value

    @pydantic.field_validator("state_dir", "run_dir")
    @classmethod
    def _is_absolute(cls, value: str, info: pydantic.ValidationInfo) -> str:
        if not os.path.isabs(value):
            raise ValueError(f"{value!r} must be an absolute path")
        if info.field_name == "state_dir" and len(value) > MAX_STATE_DIR:
            raise ValueError(f"{value!r} has {len(value)} characters; the limit is {MAX_STATE_DIR}")
        return value.rstrip("/")

    @pydantic.model_validator(mode="after")
    def _is_private(self) -> Self:
        nets = [ipaddress.IPv4Network(one) for one in PRIVATE]
        if not self.allow_public and not any(map(self.network.subnet_of, nets)):
            raise ValueError(
                f"network {self.network} is public, and Ray encrypts nothing: use a private one, or"
                " set allow_public = true"
            )
        if self.head not in self.network:
            raise ValueError(f"head {self.head} is not in network {self.network}")
        return self

    @property
    def engine_ports(self) -> range:
        return _range_of(self.ports)

    def members_file(self, name: str) -> str:
        """The file on this machine that lists the engines of a model."""
        return f"{self.run_dir}/{quote(name, safe='')}.at"


def _range_of(ports: str) -> range:
    first, _, last = ports.partition("-")
    if not all(one.isascii() and one.isdigit() and len(one) < 6 for one in (first, last)):
        return range(0)
    return range(int(first), int(last) + 1)


def check_label(label: str) -> None:
    """Raises ValueError for a text that can't be a machine's label."""
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?", label, re.ASCII):
        raise ValueError(f"{label!r} must be a label: lower-case letters, digits and -")


class TableModel(ModelSettings, extra="forbid"):
    """A `[[models]]` table. Settings outside the tables are its defaults."""

    model: str = Field(description="Directory of the model.")
    aliases: list[str] = Field([], description="Other names of the model, as in `model_aliases`.")
    load: engine.Policy = Field(
        "start",
        description="When the model is loaded: with the server (`start`), by the first request"
        " that names it (`demand`), or only by an operator (`manual`).",
    )
    idle_timeout: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="Seconds without a job after which the model is unloaded. 0: never.",
    )
    drain: float = Field(
        60.0,
        ge=0,
        le=86400,
        allow_inf_nan=False,
        description="Seconds for which the model's jobs may continue when it is unloaded or"
        " replaced.",
    )
    engines: EngineRange | None = Field(
        None,
        description='Number of the model\'s engines in the cluster, with `at = ["cluster"]`; or'
        " `{ min = 1, max = 8, jobs = 24 }`, with the target number of `jobs` per engine."
        " Default: 1.",
    )
    gpus_each: int = Field(
        1, ge=0, le=64, description="GPUs for each of these engines; 0: they run on the CPU."
    )
    nodes: list[str] = Field(
        [], description="Labels of the machines that may run these engines. Empty: any."
    )

    @pydantic.field_validator("engines", mode="before")
    @classmethod
    def _is_number(cls, value: object) -> object:
        if not isinstance(value, int) or isinstance(value, bool):
            return value
        if value < 1:
            raise ValueError(
                f"{value} must be at least 1; to end all engines, run switchyard cluster down"
            )
        return {"min": value, "max": value}

    @pydantic.field_validator("nodes")
    @classmethod
    def _are_labels(cls, value: list[str]) -> list[str]:
        for label in value:
            check_label(label)
        return value

    @pydantic.field_validator("aliases")
    @classmethod
    def _are_aliases(cls, value: list[str]) -> list[str]:
        for alias in value:
            engine.check_alias(alias)
        return value

    def to_config(self) -> engine.ModelConfig:
        return _without_copies(super().to_config())

    def served(self) -> engine.Served:
        """The model for the engine. Raises engine.ModelError with the model's name."""
        try:
            config = self.to_config()
        except engine.ModelError as error:
            raise engine.ModelError(f"models: {self.model_name}: {error}", error.param) from None
        return engine.Served(config, self.load, self.idle_timeout, self.drain, self)


class TableSettings(EngineSettings):
    models: list[TableModel] = Field(
        [],
        description="Several models: `[[models]]` tables, each with a `model` and any other"
        " settings of a model. Empty: only the model that the setting `model` names.",
    )
    default_model: str | None = Field(
        None, description="The model for requests that name none. Default: the first."
    )
    models_dir: str = Field(
        "",
        description="Directory of additional model directories, which operators may load by"
        " name. Empty: none.",
    )
    max_loaded: int = Field(
        0,
        ge=0,
        description="Maximum number of loaded models; loading another one evicts the least recently"
        " used. 0: as many as memory allows.",
    )
    load_wait: float = Field(
        120.0,
        ge=0,
        le=86400,
        allow_inf_nan=False,
        description="Seconds that a request waits for its model to load before it gets 503.",
    )
    model_aliases: dict[str, str] = Field(
        default={},
        description="Other names for models, each with its model; in the file, a table"
        " `[model_aliases]`. A `*` at the end matches any text. A model's own name takes"
        " precedence, then an alias without `*`, then the longest with `*`. Lists of models omit"
        " aliases.",
    )
    cluster: ClusterSettings | None = Field(
        None,
        description="The machines on which Ray runs engines: a `[cluster]` table"
        " ([cluster.md](cluster.md#settings)).",
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
            raise ValueError("must be [[models]] tables, with two brackets on each side")
        return value

    @pydantic.model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.models and {"model", "name"} & self.model_fields_set:
            raise ValueError(
                "models: [[models]] tables can't be combined with the model or name setting"
            )
        names = [one.model_name for one in self.models]
        called = Counter([*names, *(a for one in self.models for a in one.aliases)])
        called.update(list(self.model_aliases))
        for name, number in called.items():
            if self.models and number > 1:
                raise ValueError(f"models: {name!r} is the name or alias of more than one model")
        if self.models and self.default_model is not None and self.default_model not in names:
            raise ValueError(
                f"default_model: {self.default_model!r} is not one of {engine.listed(names)}"
            )
        try:
            engine.check_aliases(self.aliases(), names or [self.model_name])
        except engine.ModelError as error:
            raise ValueError(str(error)) from None
        num_first = sum(one.load == "start" for one in self.models)
        least = num_first + (num_first < len(self.models))
        if 0 < self.max_loaded < least:
            raise ValueError(
                f"max_loaded: must be at least {least}, because {num_first} models stay loaded"
            )
        if self.models_dir and not os.path.isdir(self.models_dir):
            raise ValueError(f"models_dir: {self.models_dir!r} is not a directory")
        if CLUSTER in self.at and not self.models:
            raise ValueError('at: "cluster" needs [[models]] tables')
        for one in self.models:
            if fault := self._fault_in_cluster(one):
                raise ValueError(f"models: {one.model_name}: {fault}")
        return self

    def _at_of(self, model: TableModel) -> list[str]:
        return model.at if "at" in model.model_fields_set else self.at

    def _fault_in_cluster(self, model: TableModel) -> str:
        """Why a model's settings conflict with the cluster's settings; empty if they don't."""
        at = self._at_of(model)
        if CLUSTER not in at:
            own = sorted({"engines", "gpus_each", "nodes"} & model.model_fields_set)
            return f'{own[0]} needs at = ["cluster"], but at is {at}' if own else ""
        if len(at) > 1:
            return 'at = ["cluster"] must be the only address'
        if self.cluster is None:
            return 'at = ["cluster"] needs a [cluster] table'
        if model.gpus or self.gpus:
            return (
                "gpus can't be set, because Ray chooses the GPUs: set their number with gpus_each"
            )
        return ""

    @property
    def max_jobs(self) -> int:
        """The maximum number of jobs that all models can hold together."""
        models: list[ModelSettings] = [*self.tables()] or [self]
        if self.models_dir:  # `models_dir` adds one more model at a time
            models.append(self)
        return sum(one.num_engines * one.max_batch_size + one.max_pending for one in models)

    def tables(self) -> list[TableModel]:
        """All tables, each completed with its defaults."""
        return [self.complete(one) for one in self.models]

    def complete(self, model: TableModel) -> TableModel:
        """The given table, completed with the settings outside the tables."""
        own = {"model", "name", *model.model_fields_set}
        rest = {name: getattr(self, name) for name in ModelSettings.model_fields if name not in own}
        if self.cluster is not None and self._at_of(model) == [CLUSTER]:
            rest["at"] = [f"file:{self.cluster.members_file(model.model_name)}"]
        return model.model_copy(update=rest)

    def in_cluster(self) -> list[TableModel]:
        """The models whose engines the cluster runs, each completed."""
        return [self.complete(one) for one in self.models if self._at_of(one) == [CLUSTER]]

    def served(self) -> list[engine.Served]:
        """All models; there is always at least one. Raises engine.ModelError with the name of the
        wrong setting.
        """
        if not self.models:
            return [engine.Served(self.engine_config())]
        return [one.served() for one in self.tables()]

    def aliases(self) -> dict[str, str]:
        """The names of models, keyed by alias."""
        own = {alias: one.model_name for one in self.models for alias in one.aliases}
        return own | self.model_aliases

    def directories(self) -> dict[str, str]:
        """The paths of the models in `models_dir`, keyed by name."""
        if not self.models_dir:
            return {}
        root = pathlib.Path(self.models_dir)
        return {
            path.name: str(path)
            for path in sorted(root.iterdir())
            if path.is_dir() and os.path.isfile(path / "config.json")
        }


def _without_copies(config: engine.ModelConfig) -> engine.ModelConfig:
    """Turns off copies of weights for one of several models, because the copies would take memory
    from the others.
    """
    if config.unpacked_weights != "auto":
        return config
    return replace(config, unpacked_weights="off")
