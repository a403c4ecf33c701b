"""A request to the answer to it, streamed or not, whatever the wire format. Request threads."""

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
    """What the jobs of a request are made of."""

    prompts: Sequence[tuple[int, ...]]
    identifiers: Sequence[str]  # of the jobs: `request.num_jobs` of each prompt, in order
    render: Render
    fit: Callable[[engine.Job], engine.Job] | None = None  # what else a job needs


def answer(
    request: Generation,
    model: engine.Engine,
    prepare: Callable[[], Prepared],
    framing: Framing | None,
) -> flask.Response:
    """`framing`: of a stream; None for an answer in one piece. Raises what `prepare` and
    `submit.submit` do, or what goes wrong before there is a first frame.
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
) -> flask.Response:
    """`identifier`: the response's. `make_render` takes the prompt, and the choices by their jobs'
    identifiers. Raises what `answer` does.
    """
    model = model_of(chat.model)

    def prepare() -> Prepared:
        prompt = services().prompts(model).prepare(chat)
        if framing is PLAIN_TEXT:  # whose one text is all that the model writes
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
