"""Counts the tokens of a conversation's prompt, in the format of OpenAI's API."""

from typing import Literal

import flask
from typing_extensions import TypedDict  # required by pydantic before Python 3.12

from switchyard.app.chat.request import Chat
from switchyard.app.delivery.submit import names_of
from switchyard.app.http.body import json_response
from switchyard.app.services import services


class InputTokens(TypedDict):
    object: Literal["response.input_tokens"]
    input_tokens: int


def answer_count(chat: Chat) -> flask.Response:
    """The number of tokens in the prompt. Also works while the model loads. Raises InvalidJob,
    PromptTooLong, ModelNotFound.
    """
    model = services().models.get(chat.model)
    with names_of(chat):
        token_ids = services().prompts(model).encode(chat, model.max_told)
    return json_response({"object": "response.input_tokens", "input_tokens": len(token_ids)})
