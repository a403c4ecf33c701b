"""Answers requests to llama.cpp's API, streamed or not. Runs on request threads."""

import uuid
from functools import partial

import flask

from switchyard import engine
from switchyard.app.formats.answer import Prepared, answer, jobs_of
from switchyard.app.formats.choices import with_extras
from switchyard.app.formats.llamacpp import render
from switchyard.app.formats.llamacpp.gap import Infill
from switchyard.app.formats.llamacpp.parse import LlamaCpp
from switchyard.app.formats.llamacpp.settings import generation_settings
from switchyard.app.formats.text.answer import read
from switchyard.app.leases import model_of
from switchyard.app.parts.choice import Choice
from switchyard.app.request import neutral
from switchyard.app.request.prompt_tokens import ended_by
from switchyard.app.services import services


def answer_prompts(request: LlamaCpp | Infill) -> flask.Response:
    try:
        services().models.get(request.model)
    except engine.ModelNotFound:  # llama.cpp's server has one model, and accepts any name
        neutral.note("model")
        request = request.model_copy(update={"model": None})
    model = model_of(request.model)
    identifier = f"completion-{uuid.uuid4().hex}"

    def prepare() -> Prepared:
        prompts = read(request, model)
        choices = {job: Choice() for job in jobs_of(identifier, len(prompts))}
        told = render.Told(
            model=model.config.name,
            settings=generation_settings(request, model),
            prompts=[model.tokenizer.decode(p.token_ids, skip_special=False) for p in prompts],
            piece=model.tokenizer.piece,
            max_tokens=model.max_tokens,
            stop_strings=request.stop,
            returns_tokens=request.return_tokens,
            has_probabilities=request.n_probs > 0,
            has_timings=request.timings,
            fields=request.response_fields,
        )
        token_ids = [one.token_ids for one in prompts]
        return Prepared(
            token_ids,
            list(choices),
            with_extras(render.LlamaCppRender(choices, told), request, token_ids),
            partial(ended_by, ends=prompts[0].ends),
        )

    return answer(request, model, prepare, render.EVENTS if request.stream else None)
