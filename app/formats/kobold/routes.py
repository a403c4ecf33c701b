"""Routes of KoboldAI, KoboldCpp and text-generation-webui, except for those of OpenAI's API."""

import hashlib
import uuid
from typing import Any

import flask
from typing_extensions import TypedDict  # required by pydantic before Python 3.12

from switchyard import engine
from switchyard.app.delivery import submit as generation
from switchyard.app.formats.kobold import parse, render
from switchyard.app.formats.text.answer import answer_text
from switchyard.app.http.body import json_response
from switchyard.app.http.identity import key_of, owner_of
from switchyard.app.openapi.contract import GENERATION, declares
from switchyard.app.request.validation import Request, validate
from switchyard.app.services import repeatable, services

API_VERSION = "1.2.5"  # the version of KoboldAI's API
KOBOLDCPP = "1.48"  # the version of KoboldCpp; clients use no newer feature

blueprint = flask.Blueprint("switchyard_kobold", __name__)


class KoboldValue(TypedDict):
    result: str


class Version(KoboldValue):
    version: str


class Number(TypedDict):
    value: int


class TokenIds(Number):
    ids: list[int]


class Success(TypedDict):
    success: bool


class Encoded(TypedDict):
    tokens: list[int]
    length: int


class Decoded(TypedDict):
    text: str


class Length(TypedDict):
    length: int


class KoboldModel(TypedDict):
    model_name: str
    lora_names: list[str]


@blueprint.post("/api/v1/generate")
@declares(
    {200: render.KoboldBody},
    body=parse.Kobold | parse.Textgen,
    errors=GENERATION,
    example={"prompt": "Once upon a time", "max_length": 64},
)
@repeatable
def generate() -> flask.Response:
    """Continue a prompt, as in KoboldAI, or with `max_new_tokens` as in text-generation-webui."""
    request = generation.receive(parse.generate, services().settings, services().gate)
    key = request.genkey if isinstance(request, parse.Kobold) else ""
    return answer_text(request, _identifier(key), render.KoboldRender, None)


@blueprint.post("/api/extra/generate/stream")
@declares(
    {200: None},
    body=parse.KoboldStream,
    streams={render.EVENTS.mimetype: render.KoboldChunk},
    errors=GENERATION,
    example={"prompt": "Once upon a time", "max_length": 64},
)
@repeatable
def stream() -> flask.Response:
    """Continue a prompt as a stream, as in KoboldCpp."""
    request = generation.receive(parse.kobold_stream, services().settings, services().gate)
    identifier = _identifier(request.genkey)
    return answer_text(request, identifier, render.KoboldRender, render.EVENTS)


@blueprint.post("/api/extra/abort")
@declares({200: Success}, body=parse.Key, example={"genkey": "KCPP1234"}, counts=False)
def abort() -> flask.Response:
    """End the generations that this client started with the given `genkey`. Each generation's own
    request returns the text so far.
    """
    key = _receive(parse.Key)
    if not (key.genkey or key_of(flask.request)):  # other clients may have the same address
        return json_response({"success": False})
    num_cancelled = 0
    for model in services().models.engines:
        for job in model.jobs(timeout=0):
            if job.identifier.startswith(_prefix(key.genkey)):
                num_cancelled += model.cancel(job.identifier)
    return json_response({"success": num_cancelled > 0})


@blueprint.post("/api/extra/tokencount")
@declares({200: TokenIds}, body=parse.CountTokens, errors=(503,), example={"prompt": "Hello!"})
def count_prompt() -> flask.Response:
    """The number of tokens in a prompt, and their ids."""
    request = _receive(parse.CountTokens)
    token_ids = _encode(request.prompt, "prompt", add_bos=request.special)
    return json_response({"value": len(token_ids), "ids": token_ids})


@blueprint.get("/api/v1/model")
@declares({200: KoboldValue})
def model() -> flask.Response:
    """The model's name."""
    return json_response({"result": services().models.get().config.name})


@blueprint.get("/api/v1/info/version")
@declares({200: KoboldValue})
def kobold_version() -> flask.Response:
    """The version of KoboldAI's API."""
    return json_response({"result": API_VERSION})


@blueprint.get("/api/extra/version")
@declares({200: Version})
def extra_version() -> flask.Response:
    """The version of KoboldCpp that this API follows."""
    return json_response({"result": "KoboldCpp", "version": KOBOLDCPP})


@blueprint.get("/api/v1/config/max_context_length")
@declares({200: Number}, errors=(503,))
def max_context_length() -> flask.Response:
    """The maximum number of tokens in prompt and completion together."""
    return json_response({"value": services().models.get().info.max_seq_len})


@blueprint.get("/api/extra/true_max_context_length")
@declares({200: Number}, errors=(503,))
def true_max_context_length() -> flask.Response:
    """The maximum number of tokens in prompt and completion together, as in KoboldCpp."""
    return max_context_length()


@blueprint.get("/api/v1/config/max_length")
@declares({200: Number})
def max_length() -> flask.Response:
    """The default limit on new tokens."""
    limit = services().models.get().config.default_max_tokens
    return json_response({"value": limit or parse.USUAL_MAX_TOKENS})


@blueprint.post("/v1/internal/encode")
@declares({200: Encoded}, body=parse.EncodeText, errors=(503,), example={"text": "Hello!"})
def encode_text() -> flask.Response:
    """Convert a text to tokens, as in text-generation-webui."""
    token_ids = _encode(_receive(parse.EncodeText).text, "text")
    return json_response({"tokens": token_ids, "length": len(token_ids)})


@blueprint.post("/v1/internal/decode")
@declares({200: Decoded}, body=parse.DecodeTokens, errors=(503,), example={"tokens": [5, 6]})
def decode_tokens() -> flask.Response:
    """Convert tokens to text, as in text-generation-webui."""
    token_ids = _receive(parse.DecodeTokens).tokens
    model = services().models.get()
    return json_response({"text": model.tokenizer.decode_given(token_ids, model.max_told)})


@blueprint.post("/v1/internal/token-count")
@declares({200: Length}, body=parse.EncodeText, errors=(503,), example={"text": "Hello!"})
def count_text() -> flask.Response:
    """The number of tokens in a text, as in text-generation-webui."""
    return json_response({"length": len(_encode(_receive(parse.EncodeText).text, "text"))})


@blueprint.get("/v1/internal/model/info")
@declares({200: KoboldModel})
def model_info() -> flask.Response:
    """The model's name, as in text-generation-webui."""
    name = services().models.get().config.name
    return json_response({"model_name": name, "lora_names": []})


def _receive(kind: type[Request]) -> Request:
    def parse_body(body: dict[str, Any]) -> Request:
        return validate(kind, body)

    return generation.receive(parse_body, services().settings, services().gate)


def _encode(text: str, name: str, add_bos: bool = True) -> tuple[int, ...]:
    """The tokens of a text, encoded as a prompt. Raises Rejected with `name` as its parameter."""
    model = services().models.get()
    try:
        return model.tokenizer.encode(text, model.max_told, add_bos=add_bos, parse_special=True)
    except engine.Rejected as error:
        error.param = name
        raise


def _prefix(key: str) -> str:
    """The prefix shared by the identifiers of a client's generations with one `genkey`."""
    whose = f"{owner_of(flask.request)}\0{key}"
    return f"kobold-{hashlib.sha256(whose.encode(errors='surrogatepass')).hexdigest()[:16]}-"


def _identifier(key: str) -> str:
    return f"{_prefix(key)}{uuid.uuid4().hex}"
