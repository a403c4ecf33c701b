"""Bodies of llama.cpp's /props and /slots. Pure."""

from collections.abc import Iterator
from typing import Any, Literal

from typing_extensions import TypedDict  # required by pydantic before Python 3.12

from switchyard import __version__, engine


class GenerationSettings(TypedDict):
    n_ctx: int


class Modalities(TypedDict):
    vision: Literal[False]
    audio: Literal[False]


class Props(TypedDict):
    default_generation_settings: GenerationSettings
    total_slots: int
    model_alias: str
    model_path: str
    chat_template: str
    bos_token: str
    eos_token: str
    modalities: Modalities
    build_info: str


class Slot(TypedDict):
    id: int
    n_ctx: int
    speculative: bool
    is_processing: bool


def props(model: engine.Engine) -> dict[str, Any]:
    """The properties of a loaded model. The model's name replaces its path, which stays private."""
    name, files = model.config.name, model.model_dir
    return {
        "default_generation_settings": {"n_ctx": model.info.max_seq_len},
        "total_slots": model.config.max_batch_size,
        "model_alias": name,
        "model_path": name,
        "chat_template": files.chat_template or "",
        "bos_token": files.special_token("bos_token") or "",
        "eos_token": files.special_token("eos_token") or "",
        "modalities": {"vision": False, "audio": False},
        "build_info": f"switchyard-{__version__}",
    }


def slots(model: engine.Engine) -> Iterator[dict[str, Any]]:
    """The slots of a loaded model, one for each job that may run at the same time. The busy slots
    come first.

    The slots don't show which client's job they hold.
    """
    num_busy = sum(job.state != "pending" for job in model.jobs(timeout=0))
    for i in range(model.config.max_batch_size):
        yield {
            "id": i,
            "n_ctx": model.info.max_seq_len,
            "speculative": model.config.has_draft,
            "is_processing": i < num_busy,
        }
