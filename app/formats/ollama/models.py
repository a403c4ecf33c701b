"""Describes models as Ollama's API shows them. Pure."""

import time
from typing import Any

from switchyard import engine
from switchyard.app.formats.ollama.times import NEVER, written
from switchyard.app.request.infill_forms import FORMS

LATEST = ":latest"  # the tag that clients append to a name without one

_STEPS = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K"))


def listed(model: engine.Engine) -> dict[str, Any]:
    """A model in the list of served models."""
    return {**_head(model), "modified_at": written(model.model_dir.created * 10**9)}


def running(model: engine.Engine, status: engine.ModelStatus) -> dict[str, Any]:
    """A model in the list of loaded models."""
    on_gpus = sum(size for place, size in status.needed.items() if place != "host")
    left = status.idle_left
    is_on_gpus = not model.info.device.startswith("cpu")
    return {
        **_head(model),
        "expires_at": NEVER if left is None else written(time.time_ns() + round(left * 1e9)),
        "size_vram": (on_gpus or model.model_dir.size) if is_on_gpus else 0,
        "context_length": model.info.max_seq_len,
    }


def shown(model: engine.Engine, defaults: dict[str, Any], capabilities: list[str]) -> Any:
    """All information about a model. `defaults`: the defaults of options, under Ollama's names."""
    files, name = model.model_dir, model.config.name
    parameters = "\n".join(f"{key:<30} {value}" for key, value in defaults.items())
    return {
        "modelfile": f"# A Switchyard model. Switchyard uses no Modelfiles.\nFROM {name}\n",
        "license": "",
        "parameters": parameters,
        "template": files.chat_template or "",
        "details": _details(model),
        "model_info": _info(model),
        "capabilities": capabilities,
        "modified_at": written(files.created * 10**9),
    }


def fills_gaps(model: engine.Engine) -> bool:
    """Whether the model has fill-in-the-middle tokens. Raises engine.Dead if the model can't be
    read.
    """
    tokenizer = model.tokenizer
    return any(all(tokenizer.token_id(t) is not None for t in form.tokens) for form in FORMS)


def _head(model: engine.Engine) -> dict[str, Any]:
    name, files = model.config.name, model.model_dir
    return {
        "name": name,
        "model": name,
        "size": files.size,
        "digest": files.fingerprint.removeprefix("fp_"),
        "details": _details(model),
    }


def _details(model: engine.Engine) -> dict[str, Any]:
    files, family = model.model_dir, _family(model)
    return {
        "parent_model": "",
        "format": "safetensors",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": _short(files.num_parameters),
        "quantization_level": _quantization(files.config),
    }


def _family(model: engine.Engine) -> str:
    return str(model.model_dir.config.get("model_type") or "")


def _short(number: int) -> str:
    """Formats a number of parameters, for example as `7.2B`."""
    for size, letter in _STEPS:
        if number >= size:
            return f"{number / size:.1f}{letter}"
    return str(number) if number else ""


def _quantization(config: dict[str, Any]) -> str:
    told = config.get("quantization_config")
    told = told if isinstance(told, dict) else {}
    method, bits = told.get("quant_method"), told.get("bits")
    if method is None:
        kind = str(config.get("torch_dtype") or config.get("dtype") or "float16")
        return {"float16": "F16", "bfloat16": "BF16", "float32": "F32"}.get(kind, kind)
    return f"{str(method).upper()} {bits}bpw" if bits else str(method).upper()


def _info(model: engine.Engine) -> dict[str, str | int]:
    family, shape = _family(model), model.model_dir.shape
    info: dict[str, str | int] = {
        "general.architecture": family,
        "general.basename": model.config.name,
        "general.parameter_count": model.model_dir.num_parameters,
    }
    numbers = {"context_length": model.context}
    if shape is not None:
        numbers |= {
            "embedding_length": shape.hidden_size,
            "feed_forward_length": shape.inner_size,
            "block_count": shape.num_layers,
            "attention.head_count": shape.num_heads,
            "attention.head_count_kv": shape.num_kv_heads,
            "vocab_size": shape.vocab_size,
        }
    return info | {f"{family}.{name}": number for name, number in numbers.items()}
