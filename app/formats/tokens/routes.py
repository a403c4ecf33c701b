"""The routes for tokens. Routes whose response doesn't contain the context length work before the
model is warm.
"""

from collections.abc import Sequence
from typing import Any

import flask
from typing_extensions import TypedDict  # required by pydantic before Python 3.12

from switchyard import engine
from switchyard.app.chat.request import Chat, chat
from switchyard.app.delivery import submit as generation
from switchyard.app.formats.tokens import parse
from switchyard.app.http.body import json_response
from switchyard.app.openapi.contract import declares
from switchyard.app.services import services

blueprint = flask.Blueprint("switchyard_tokens", __name__)


class Piece(TypedDict):
    id: int
    piece: str | list[int]


class TokenList(TypedDict):
    tokens: list[int] | list[Piece]


class Tokenized(TypedDict):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class TokenText(TypedDict):
    content: str
    prompt: str


class TokenizerInfo(TypedDict):
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    chat_template: str | None


class PromptText(TypedDict):
    prompt: str


@blueprint.post("/tokenize")
@declares(
    {200: TokenList | Tokenized},
    body=parse.TokenizeContent | parse.TokenizePrompt | parse.TokenizeChat,
    errors=(404, 503),
    example={"content": "Hello!"},
)
def tokenize() -> flask.Response:
    """The tokens of `content`, as in llama.cpp, or of `prompt` or `messages`, as in vLLM."""
    request = generation.receive(parse.tokenize, services().settings, services().gate)
    model = services().models.get(request.model)
    tokenizer = model.tokenizer
    token_ids = encode(request)
    if isinstance(request, parse.TokenizeContent):
        pieces = [_piece(tokenizer, i) for i in token_ids] if request.with_pieces else None
        return json_response({"tokens": pieces or token_ids})
    names = [tokenizer.token(i) for i in token_ids] if request.return_token_strs else None
    body = {
        "count": len(token_ids),
        "max_model_len": model.info.max_seq_len,
        "tokens": token_ids,
        "token_strs": names,
    }
    return json_response(body)


@blueprint.post("/detokenize")
@declares({200: TokenText}, body=parse.Detokenize, errors=(404, 503), example={"tokens": [5, 6]})
def detokenize() -> flask.Response:
    """Convert tokens to text, including special tokens.

    The response contains the text as `content` for llama.cpp's clients, and as `prompt` for vLLM's.
    """
    request = generation.receive(parse.detokenize, services().settings, services().gate)
    model = services().models.get(request.model)
    text = model.tokenizer.decode_given(request.tokens, model.max_told)
    return json_response({"content": text, "prompt": text})


@blueprint.post("/apply-template")
@declares(
    {200: PromptText},
    body=Chat,
    errors=(404, 503),
    example={"messages": [{"role": "user", "content": "Hello!"}]},
)
def apply_template() -> flask.Response:
    """The text of a conversation's prompt. Parameters that don't affect the prompt are ignored."""
    request = generation.receive(chat, services().settings, services().gate)
    model = services().models.get(request.model)
    with generation.names_of(request):
        text = services().prompts(model).render(request, model.max_told)
    return json_response({"prompt": text.replace(engine.ESCAPE, "")})


@blueprint.get("/tokenizer_info")
@declares({200: TokenizerInfo}, errors=(503,))
def tokenizer_info() -> flask.Response:
    """The model's special tokens and chat template; null for those that the model doesn't have."""
    files = services().models.get().model_dir
    names = ("bos_token", "eos_token", "pad_token")
    body = {name: files.special_token(name) for name in names}
    return json_response({**body, "chat_template": files.chat_template})


def encode(request: parse.Tokenize) -> Sequence[int]:
    """The tokens of the text in a request. Raises PromptTooLong, InvalidJob, ModelNotFound."""
    model = services().models.get(request.model)
    tokenizer, limit = model.tokenizer, model.max_told
    with generation.names_of(request):
        match request:
            case parse.TokenizeContent():
                adds, parses = request.add_special, request.parse_special
                return tokenizer.encode(request.content, limit, adds, parse_special=parses)
            case parse.TokenizePrompt():
                adds = request.add_special_tokens
                return tokenizer.encode(request.prompt, limit, adds, parse_special=not adds)
            case parse.TokenizeChat():
                return services().prompts(model).encode(request, limit)


def _piece(tokenizer: engine.Tokenizer, token_id: int) -> dict[str, Any]:
    data = tokenizer.piece(token_id)
    try:
        return {"id": token_id, "piece": data.decode() or tokenizer.token(token_id)}
    except UnicodeDecodeError:
        return {"id": token_id, "piece": list(data)}
