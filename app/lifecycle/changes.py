"""Request bodies with which operators change models, and the resulting model settings."""

import json
import logging
from typing import Any

import flask
import pydantic
from pydantic import Field

from switchyard import engine
from switchyard.app.exceptions import BadRequest
from switchyard.app.http.identity import author_of
from switchyard.app.request.validation import Parameters
from switchyard.app.services import services
from switchyard.app.table_settings import TableModel

audit = logging.getLogger("switchyard.audit")


class ModelName(Parameters):
    model: str = Field(description="A model's name, or an alias.")


class _Change(Parameters):
    way: engine.Way | None = Field(
        None,
        description="`beside`: the old engine continues until the new one is loaded; `drain`: the"
        " old engine ends first. Default: `beside` if memory allows.",
    )


def _optional(name: str, field: Any) -> Any:
    return (field.annotation | None, Field(None, description=field.description))


# Settings of machines, which requests may not choose.
OF_CLUSTER = ("engines", "gpus_each", "nodes")

# Each setting of a table `[[models]]`, except its names, and settings with paths or addresses,
# which only the configuration may set.
ModelChange: Any = pydantic.create_model(
    "ModelChange",
    __base__=_Change,
    **{
        name: _optional(name, field)
        for name, field in TableModel.model_fields.items()
        if name not in ("name", "aliases", "loras", "at", "engine_key_file", *OF_CLUSTER)
    },
)


def named(name: str) -> str:
    """The name of the model that has the given name or alias. Adds the model to the table if the
    model is in `models_dir`.

    Raises engine.ModelNotFound.
    """
    here = services()
    try:
        return here.models.served(name).config.name
    except engine.ModelNotFound:
        if name not in here.settings.directories():
            raise
        served = change_of(name, ModelChange())
        check_threads(served)
        here.models.add(served)
        return name


def swap(name: str, request: Any, is_default: bool = False) -> engine.Load:
    """Begins to load model `name` with the request's settings. A new name is added without these
    settings, so if this load fails, the next load doesn't use them. Raises BadRequest,
    engine.ModelError.
    """
    models = services().models
    served = change_of(name, request)
    given = request.model_dump(mode="json", exclude_unset=True)
    told = f", {json.dumps(given)}" if given else ""
    check_threads(served)
    audit.warning("%s: load %s%s", author_of(flask.request), name, told)
    if name not in models.names:
        only = request.model_dump(include={"model"}, exclude_unset=True)
        models.add(change_of(name, ModelChange(**only)))
    return models.swap(served, request.way, is_default)


def change_of(name: str, request: Any) -> engine.Served:
    """The configured model `name`, or a directory in `models_dir`, with the request's settings.

    Raises BadRequest, and engine.ModelNotFound for an unknown name.
    """
    here = services()
    settings, paths = here.settings, here.settings.directories()
    given = request.model_dump(exclude_unset=True, exclude={"way"})
    known = _known(name)
    if known is None and name not in paths and "model" not in given:
        _check_alias(name)
        there = engine.listed(dict.fromkeys([*here.models.names, *paths]))
        raise engine.ModelNotFound(
            f"model {name[:100]!r} does not exist; available: {there}", "model"
        )
    for what in ("model", "draft_model"):
        if given.get(what) is not None:
            given[what] = _path_of(given[what], what)
    base = {"model": paths.get(name), "load": "manual"} if known is None else known
    try:
        table = TableModel.model_validate({**base, **given, "name": name})
        served = settings.complete(table).served()
        engine.check_gpus(served.config)
        return served
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        message = f"{where}: {first['msg'].removeprefix('Value error, ')}"
        raise BadRequest(message, where) from None
    except engine.ModelError as error:
        raise BadRequest(str(error), error.param) from None


def check_threads(served: engine.Served) -> None:
    """Raises BadRequest if there could be more jobs than request threads, whose number is fixed at
    startup.
    """
    here = services()
    needed = served.config.max_jobs
    for name in here.models.names:
        one, state = here.models.served(name), here.models.status(name).state
        is_there = one.load != "manual" or state not in ("unloaded", "failed")
        if is_there and name != served.config.name:
            needed += one.config.max_jobs
    if needed > here.settings.max_jobs:
        raise BadRequest(
            f"max_batch_size and max_pending of all models add up to {needed} jobs with this one;"
            f" the server has request threads for {here.settings.max_jobs}",
            "max_batch_size",
        )


def _check_alias(name: str) -> None:
    """Raises engine.ModelNotFound, with the model's name, for an alias."""
    try:
        own = services().models.served(name).config.name
    except engine.ModelNotFound:
        return
    raise engine.ModelNotFound(
        f"{name[:100]!r} is an alias: use the model's own name, {own!r}", "model"
    )


def _known(name: str) -> dict[str, Any] | None:
    """The settings in a model's table; None for an unknown model."""
    here = services()
    if name not in here.models.names:
        return None
    served = here.models.served(name)
    if isinstance(served.about, TableModel):
        return served.about.model_dump()
    return {"model": served.config.path}


def _path_of(model: str, param: str) -> str:
    """The path of a model. Raises BadRequest for a path that the server doesn't know."""
    here = services()
    paths = here.settings.directories()
    configs = [here.models.served(name).config for name in here.models.names]
    if model not in paths and model not in {p for c in configs for p in (c.path, c.draft_model)}:
        raise BadRequest(
            f"{param}: {model[:100]!r} is not a directory in models_dir; available:"
            f" {engine.listed(paths)}",
            param,
        )
    return paths.get(model, model)
