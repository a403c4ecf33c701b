"""Types of the responses of Ollama's API, for its contract."""

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict  # required by pydantic before Python 3.12

from switchyard.app.delivery.timings import TimingsBody
from switchyard.app.formats.shapes import FinishReason

DoneReason = FinishReason | Literal["load", "unload"]


class OllamaToken(TypedDict):
    token: str
    logprob: float
    bytes: list[int]


class OllamaLogprob(OllamaToken):
    top_logprobs: list[OllamaToken]


class OllamaEnd(TypedDict):
    """The members that only the last body of an answer has. Durations are in nanoseconds."""

    model: str
    created_at: str
    done: bool
    done_reason: NotRequired[DoneReason]
    total_duration: NotRequired[int]
    load_duration: NotRequired[int]
    prompt_eval_count: NotRequired[int]
    prompt_eval_duration: NotRequired[int]
    eval_count: NotRequired[int]
    eval_duration: NotRequired[int]
    logprobs: NotRequired[list[OllamaLogprob]]
    timings: NotRequired[TimingsBody]


class OllamaCalledFunction(TypedDict):
    index: int
    name: str
    arguments: dict[str, Any]


class OllamaToolCall(TypedDict):
    id: str
    function: OllamaCalledFunction


class OllamaAnswer(TypedDict):
    role: Literal["assistant"]
    content: str
    thinking: NotRequired[str]
    tool_calls: NotRequired[list[OllamaToolCall]]


class OllamaChatBody(OllamaEnd):
    """A whole answer, or one line of a stream. The last line has `done: true`."""

    message: OllamaAnswer


class OllamaGenerateBody(OllamaEnd):
    """A whole answer, or one line of a stream. The last line has `done: true`."""

    response: str
    thinking: NotRequired[str]
    context: NotRequired[list[int]]


class OllamaVersion(TypedDict):
    version: str
    switchyard: str


class OllamaDetails(TypedDict):
    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(TypedDict):
    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaDetails


class OllamaModels(TypedDict):
    models: list[OllamaModel]


class OllamaRunning(TypedDict):
    name: str
    model: str
    size: int
    digest: str
    details: OllamaDetails
    expires_at: str
    size_vram: int
    context_length: int


class OllamaRunningModels(TypedDict):
    models: list[OllamaRunning]


class OllamaShown(TypedDict):
    modelfile: str
    license: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, str | int]
    capabilities: list[Literal["completion", "tools", "thinking", "insert"]]
    modified_at: str


class OllamaStatus(TypedDict):
    status: Literal["success"]
