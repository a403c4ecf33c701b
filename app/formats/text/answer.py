"""Answers requests with one text prompt, streamed or not. Runs on request threads."""

from collections.abc import Callable, Mapping

import flask

from switchyard import engine
from switchyard.app.delivery.framing import PLAIN_TEXT, Framing
from switchyard.app.exceptions import BadRequest
from switchyard.app.formats.answer import Prepared, answer, jobs_of
from switchyard.app.formats.choices import with_extras
from switchyard.app.formats.text.render import TextRender
from switchyard.app.formats.text.request import TextRequest
from switchyard.app.leases import model_of
from switchyard.app.parts.choice import Choice
from switchyard.app.request.prompt_tokens import PromptTokens


def answer_text(
    request: TextRequest,
    identifier: str,
    make_render: Callable[[Mapping[str, Choice]], TextRender],
    framing: Framing | None,
) -> flask.Response:
    """The response. `framing`: the framing of a stream; None for a whole answer. Raises BadRequest,
    and the exceptions of `answer`.
    """
    if framing is not None and request.n > 1:
        raise BadRequest("a stream can contain only one choice", request.names["n"])
    for name in ("timings", "timings_per_token"):
        if framing is PLAIN_TEXT and getattr(request, name):
            raise BadRequest("a text/plain response can't contain timings", name)
    if framing is PLAIN_TEXT and request.return_progress:
        raise BadRequest("a text/plain response can't contain progress", "return_progress")
    model = model_of(request.model)

    def prepare() -> Prepared:
        choices = {job: Choice() for job in jobs_of(identifier, request.n)}
        token_ids = [one.token_ids for one in read(request, model)]
        render = with_extras(make_render(choices), request, token_ids)
        return Prepared(token_ids, list(choices), render)

    return answer(request, model, prepare, framing)


def read(request: TextRequest, model: engine.Engine) -> list[PromptTokens]:
    """The prompts of a request. Raises the same exceptions as `Engine.check_room` and
    `TextRequest.read`.
    """
    model.check_room(
        request.num_prompts * request.n, model.tokenizer.guess(request.size) * request.n
    )
    return request.read(model.tokenizer, model.info.max_seq_len)
