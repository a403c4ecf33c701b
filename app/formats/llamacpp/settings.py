"""`generation_settings`: the effective parameters of a request, in llama.cpp's responses. Pure."""

from dataclasses import fields
from typing import Any

from switchyard import engine
from switchyard.app.formats.llamacpp.parse import LlamaCppOptions

UNSEEDED = 2**32 - 1  # llama.cpp's value for a request without a seed


def generation_settings(request: LlamaCppOptions, model: engine.Engine) -> dict[str, Any]:
    """The effective parameters of a request, under llama.cpp's names. Samplers that this server
    doesn't have are shown as off.
    """
    sampling = request.sampling(model.config)
    names = request.names_of_fields()
    biased: dict[int, float | None] = {**request.biased(sampling, model.tokenizer)}
    if request.ignore_eos:  # null means minus infinity
        biased |= dict.fromkeys(model.tokenizer.eos_token_ids)
    asked = {names[f.name]: getattr(sampling, f.name) for f in fields(sampling) if f.name in names}
    return {
        **asked,
        "logit_bias": [{"token": token, "bias": bias} for token, bias in biased.items()],
        "repeat_last_n": sampling.repetition_range,
        "seed": UNSEEDED if request.seed is None else request.seed,
        "n_ctx": model.info.max_seq_len,
        "n_predict": -1 if request.max_tokens is None else request.max_tokens,
        "n_probs": request.n_probs,
        "model": model.config.name,
        "stop": request.stop,
        "stream": request.stream,
        "ignore_eos": request.ignore_eos,
        "adaptive_target": -1.0,
        "adaptive_decay": 0.0,
    }
