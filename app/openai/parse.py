"""Request bodies to what the engine needs. Pure: no Flask, no engine state."""

import itertools
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
)

import engine
from app.body import BadRequest

# Parameters of OpenAI's API that this server doesn't have, with the values that ask for nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "function_call": ("none",),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "metadata": ({},),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none",),
    "tools": ([],),
    "top_logprobs": (0,),
    "web_search_options": (),
}

Finite = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Tokens = Annotated[int, Field(ge=1, lt=2**31)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Prompt = (
    Annotated[str, Field(min_length=1)]
    | Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
)
StopString = Annotated[str, Field(min_length=1, max_length=1000)]


MAX_SHOWN = 100  # characters of a name that a client made up
MAX_NAMES = 100  # more than any object here knows, so at least one is wrong
MAX_MESSAGES = 2048  # OpenAI's
MAX_PARTS = 10_000  # of all messages of a chat

_TEXT, _PARTS = "<text>", "<parts>"  # what a message's content is, in the places of errors

PROMPT_KINDS = (
    "must be a string, a list of strings, token ids, or a list of lists of them, and none empty"
)


class StreamOptions(BaseModel):
    model_config = Finite

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class Generation(BaseModel):
    """What completions and chat completions have in common."""

    model_config = Finite
    default_max_tokens: ClassVar[int | None] = None

    model: str | None = None
    max_tokens: Tokens | None = None
    n: int = Field(1, ge=1, le=128)
    temperature: float = Field(1.0, ge=0, le=5)
    top_p: float = Field(1.0, ge=0, le=1)
    top_k: int = Field(0, ge=-1, le=100_000)
    min_p: float = Field(0.0, ge=0, le=1)
    repetition_penalty: float | None = Field(None, ge=0.1, le=10)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    stop: list[StopString] = Field(default=[], max_length=16, fail_fast=True)
    stop_token_ids: list[TokenId] = Field(default=[], max_length=64, fail_fast=True)
    min_tokens: int = Field(0, ge=0, lt=2**31)
    ignore_eos: bool = False
    stop_on_loop: bool | None = None
    seed: Seed | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    priority: int = Field(0, ge=-(2**31), lt=2**31)
    timeout: float | None = Field(None, gt=0, le=86400)  # seconds
    user: str | None = None  # for the operator's logs

    @field_validator("stop", mode="before")
    @classmethod
    def _list_of_stop_strings(cls, value: Any) -> Any:
        if not isinstance(value, str | list):
            raise ValueError("must be a string or a list of strings")
        return [value] if isinstance(value, str) else value

    @field_validator("stream_options", mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        return _without_nulls(value) if isinstance(value, dict) else value

    @property
    def asked_tokens(self) -> int | None:
        """New tokens asked for; None leaves it to the server."""
        return self.max_tokens or self.default_max_tokens

    @property
    def names(self) -> dict[str, str]:
        """What this request calls the parameters that the engine has other names for."""
        return {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def job(
        self,
        identifier: str,
        prompt: tuple[int, ...],
        max_new_tokens: int,
        choice: int,
        config: engine.ModelConfig,
        client: str,
    ) -> engine.Job:
        """The job of one choice; with a seed each choice of a prompt has its own. `config` has what
        the request doesn't say.
        """
        return engine.Job(
            identifier=identifier,
            prompt=prompt,
            max_new_tokens=max_new_tokens,
            sampling=engine.Sampling(
                temperature=self.temperature,
                top_k=max(self.top_k, 0),
                top_p=self.top_p,
                min_p=self.min_p,
                repetition_penalty=_given(
                    self.repetition_penalty, config.default_repetition_penalty
                ),
                frequency_penalty=_given(self.frequency_penalty, config.default_frequency_penalty),
                presence_penalty=self.presence_penalty,
                seed=None if self.seed is None else self.seed + choice,
            ),
            stop_strings=tuple(self.stop),
            stop_token_ids=tuple(self.stop_token_ids),
            min_new_tokens=self.min_tokens,
            ignore_eos=self.ignore_eos,
            stop_on_loop=_given(self.stop_on_loop, config.default_stop_on_loop),
            priority=self.priority,
            client=client,
        )


class Completion(Generation):
    default_max_tokens = 16  # OpenAI's

    prompt: list[Prompt] = Field(min_length=1, fail_fast=True)
    echo: bool = False

    @field_validator("prompt", mode="before")
    @classmethod
    def _list_of_prompts(cls, value: Any) -> Any:
        """A string or token ids, to a list of one."""
        is_one = isinstance(value, str) or (
            isinstance(value, list) and value and type(value[0]) is int
        )
        return [value] if is_one else value

    @property
    def names(self) -> dict[str, str]:
        return {**super().names, "n": "n" if self.n > len(self.prompt) else "prompt"}


class TextPart(BaseModel):
    model_config = Finite

    type: Literal["text"]
    text: str


class Message(BaseModel):
    model_config = Finite

    role: Literal["system", "user", "assistant"]
    content: Annotated[
        Annotated[str, Tag(_TEXT)] | Annotated[list[TextPart], Field(fail_fast=True), Tag(_PARTS)],
        Discriminator(lambda value: _PARTS if isinstance(value, list) else _TEXT),
    ]
    name: str | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class Chat(Generation):
    messages: list[Message] = Field(min_length=1, fail_fast=True)
    max_completion_tokens: Tokens | None = None

    @field_validator("messages", mode="before")
    @classmethod
    def _clean(cls, value: Any) -> Any:
        """Without nulls: clients send back what they were given, `"refusal": null` and the like."""
        if not isinstance(value, list):
            return value
        if len(value) > MAX_MESSAGES:
            raise ValueError(f"must be at most {MAX_MESSAGES}")
        contents = [item.get("content") for item in value if isinstance(item, dict)]
        if sum(len(c) for c in contents if isinstance(c, list)) > MAX_PARTS:
            raise ValueError(f"must have at most {MAX_PARTS} parts together")
        return [_clean_message(item) if isinstance(item, dict) else item for item in value]

    @property
    def asked_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def names(self) -> dict[str, str]:
        limit = "max_tokens" if self.max_tokens else "max_completion_tokens"
        return {**super().names, "prompt": "messages", "max_new_tokens": limit}


def completion(body: dict[str, Any]) -> Completion:
    """Raises BadRequest."""
    return _validate(Completion, body)


def chat(body: dict[str, Any]) -> Chat:
    """Raises BadRequest."""
    request = _validate(Chat, body)
    if request.max_tokens is not None and request.max_completion_tokens is not None:
        raise BadRequest("give max_tokens or max_completion_tokens, not both", "max_tokens")
    return request


Value = TypeVar("Value", float, bool)


def _given(value: Value | None, default: Value) -> Value:
    return default if value is None else value


Request = TypeVar("Request", bound=Generation)


def _validate(kind: type[Request], body: dict[str, Any]) -> Request:
    given = _without_nulls(body)
    for name, neutral in _NEUTRAL.items():
        if name in given and not _is_one_of(given.pop(name), neutral):
            raise BadRequest(f"{name} is not supported", name, "unsupported_parameter")
    for name in given:
        if name not in kind.model_fields:
            shown = name[:MAX_SHOWN]
            raise BadRequest(f"unknown parameter: {shown}", shown, "unknown_parameter")
    try:
        request = kind.model_validate(given)
    except ValidationError as error:
        raise _explain(error, given) from None
    if request.stream_options is not None and not request.stream:
        raise BadRequest("stream_options needs stream: true", "stream_options")
    return request


def _explain(error: ValidationError, given: dict[str, Any]) -> BadRequest:
    """The first thing that is wrong, in words of the API."""
    errors = error.errors(include_url=False, include_context=False)
    # What is missing may have been among very many names that are wrong.
    first = min(errors, key=lambda fault: fault["type"] == "missing")
    steps = tuple(step for step in first["loc"] if step not in (_TEXT, _PARTS))
    if isinstance(given.get(str(steps[0])), str):  # which was made a list of one
        steps = steps[:1]
    where = ".".join(str(step)[:MAX_SHOWN] for step in steps)
    match first["type"]:
        case "extra_forbidden":
            return BadRequest(f"unknown parameter: {where}", where, "unknown_parameter")
        case "missing":
            return BadRequest(f"missing parameter: {where}", where, "missing_required_parameter")
    if first["loc"][0] == "prompt":  # several types are possible, and each would have its say
        where, message = "prompt", PROMPT_KINDS
    else:
        message = first["msg"].removeprefix("Value error, ")
    return BadRequest(f"{where}: {message[0].lower()}{message[1:]}", where)


def _clean_message(message: dict[str, Any]) -> dict[str, Any]:
    given = _without_nulls(message)
    for name in ("annotations", "tool_calls"):
        if given.get(name) == []:
            del given[name]
    if isinstance(content := given.get("content"), list):
        given["content"] = [_without_nulls(p) if isinstance(p, dict) else p for p in content]
    return given


def _without_nulls(value: dict[str, Any]) -> dict[str, Any]:
    """null is how many clients say that they don't give a parameter.

    Of very many, the first: pydantic would list all that are wrong.
    """
    given = ((name, item) for name, item in value.items() if item is not None)
    return dict(itertools.islice(given, MAX_NAMES))


def _is_one_of(value: Any, values: tuple[Any, ...]) -> bool:
    """By type too: to Python, 0 is False."""
    return any(type(value) is type(other) and value == other for other in values)
