"""The steps from a request to its response, for all wire formats. Runs on request threads."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import flask

from switchyard import engine
from switchyard.app.chat.answer import Answer
from switchyard.app.chat.request import Chat
from switchyard.app.delivery import submit
from switchyard.app.delivery.framing import PLAIN_TEXT, Framing
from switchyard.app.delivery.render import Render
from switchyard.app.leases import model_of
from switchyard.app.request.generation import Generation
from switchyard.app.services import services


@dataclass(frozen=True, slots=True)
class Prepared:
    """A tokenized request with its render, ready to be submitted."""

    prompts: Sequence[tuple[int, ...]]
    # The jobs' identifiers: `request.num_jobs` for each prompt, in order.
    identifiers: Sequence[str]
    render: Render
    fit: Callable[[engine.Job], engine.Job] | None = None  # adapts each job


def answer(
    request: Generation,
    model: engine.Engine,
    prepare: Callable[[], Prepared],
    framing: Framing | None,
) -> flask.Response:
    """Submits a request, and returns the response. `framing`: the framing of a stream; None for a
    whole answer.

    Raises the exceptions of `prepare` and `submit.submit`, and any error before the first frame.
    """
    with submit.names_of(request):
        ready = prepare()
        submitted = submit.submit(
            request,
            model,
            ready.prompts,
            ready.identifiers,
            framing is not None,
            services().settings,
            ready.fit,
        )
        if framing is None:
            return services().answers.whole(submitted, ready.render)
        return services().answers.stream(submitted, ready.render, framing)


def answer_chat(
    chat: Chat,
    identifier: str,
    make_render: Callable[[tuple[int, ...], Mapping[str, Answer]], Render],
    framing: Framing | None,
    before: Callable[[tuple[int, ...]], tuple[int, ...]] = lambda token_ids: token_ids,
) -> flask.Response:
    """Answers a chat. `identifier`: the identifier of the response. Raises the same exceptions as
    `answer`.

    `make_render` receives the prompt's tokens, and the choices, keyed by the identifiers of their
    jobs. `before`: a function that adds tokens before those of the prompt.
    """
    model = model_of(chat.model)

    def prepare() -> Prepared:
        prompt = services().prompts(model).prepare(chat)
        prompt = replace(prompt, token_ids=before(prompt.token_ids))
        if framing is PLAIN_TEXT:  # bare text can't show thoughts separately
            prompt = replace(prompt, tags=None)
        answers = {
            job: Answer(prompt.parser(), partial(model.cancel, job), chat.include_reasoning)
            for job in jobs_of(identifier, chat.n)
        }
        render = make_render(prompt.token_ids, answers)
        return Prepared([prompt.token_ids], list(answers), render, prompt.fit)

    return answer(chat, model, prepare, framing)


def jobs_of(identifier: str, num_jobs: int) -> list[str]:
    """The identifiers of a response's jobs."""
    return [f"{identifier}-{i}" for i in range(num_jobs)]
