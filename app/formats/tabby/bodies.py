"""Bodies of TabbyAPI's responses about models, LoRAs and templates. Pure."""

import os
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict  # required by pydantic before Python 3.12

from switchyard import engine
from switchyard.app.http.body import dumps
from switchyard.app.lifecycle.loads import LOOK

TEMPLATE = "from_tokenizer_config"  # TabbyAPI's name for the model's own template
CACHE_MODES = {"float16": "FP16", "float32": "FP32"}  # other modes have the same names in both APIs


class TabbyParameters(TypedDict):
    max_seq_len: int
    cache_size: int
    cache_mode: str
    rope_scale: float | None
    rope_alpha: float | None
    chunk_size: int | None
    max_batch_size: int
    prompt_template: str | None
    prompt_template_content: str | None
    use_vision: Literal[False]


class TabbyModel(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    parameters: NotRequired[TabbyParameters]


class TabbyModelList(TypedDict):
    object: Literal["list"]
    data: list[TabbyModel]


class TabbyLora(TypedDict):
    id: str
    object: Literal["lora"]
    created: int
    owned_by: str
    scaling: float


class TabbyLoraList(TypedDict):
    object: Literal["list"]
    data: list[TabbyLora]


class TabbyTemplateList(TypedDict):
    object: Literal["list"]
    data: list[str]


class Permission(TypedDict):
    permission: Literal["api", "admin"]


class TabbyLoad(TypedDict):
    model_type: Literal["model"]
    module: int
    modules: int
    status: Literal["processing", "finished"]


class TabbyTokens(TypedDict):
    tokens: list[int]
    length: int


class TabbyText(TypedDict):
    text: str


def model_card(model: engine.Engine) -> dict[str, Any]:
    """A model, without the members that only a loaded model has."""
    return {"object": "model", **_card(model.config.name, model)}


def card_of(name: str, path: str) -> dict[str, Any]:
    """Describes a model directory that is not served."""
    created = int(os.stat(os.path.join(path, "config.json")).st_mtime)
    return {"id": name, "object": "model", "created": created, "owned_by": "switchyard"}


def events_of_load(load: engine.Load) -> Iterator[bytes]:
    """Events that report a load's progress. The last event says that the model is loaded, or
    contains the error.
    """
    try:
        while (progress := load.wait(LOOK)) is not None:
            yield _event(int(100 * progress), "processing")
    except engine.EngineError as error:
        yield b"data: " + dumps({"error": {"message": str(error), "trace": None}}) + b"\n\n"
        return
    yield _event(100, "finished")


def parameters(model: engine.Engine) -> dict[str, Any]:
    """The parameters of a loaded model. Raises Refused."""
    info, config, template = model.info, model.config, model.model_dir.chat_template
    return {
        "max_seq_len": info.max_seq_len,
        "cache_size": info.num_pages * info.page_size,
        "cache_mode": CACHE_MODES.get(info.cache_mode, info.cache_mode),
        "rope_scale": config.rope_scale,
        "rope_alpha": config.rope_alpha,
        "chunk_size": config.max_chunk_size,
        "max_batch_size": config.max_batch_size,
        "prompt_template": TEMPLATE if template else None,
        "prompt_template_content": template,
        "use_vision": False,
    }


def lora_card(lora: engine.Lora, model: engine.Engine) -> dict[str, Any]:
    return {"object": "lora", "scaling": lora.scaling, **_card(lora.name, model)}


def listed(data: Sequence[Any]) -> dict[str, Any]:
    return {"object": "list", "data": data}


def _card(identifier: str, model: engine.Engine) -> dict[str, Any]:
    created = model.model_dir.created
    return {"id": identifier, "created": created, "owned_by": "switchyard"}


def _event(module: int, status: str) -> bytes:
    body = {"model_type": "model", "module": module, "modules": 100, "status": status}
    return b"data: " + dumps(body) + b"\n\n"
