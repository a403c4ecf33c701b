"""Request bodies of Ollama's chats and generations, which this server handles as chats. Pure."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import Field, field_validator

from switchyard.app.chat.messages import Message
from switchyard.app.chat.request import Chat
from switchyard.app.exceptions import BadRequest
from switchyard.app.formats.ollama.keep import DURATION, seconds
from switchyard.app.formats.ollama.messages import OllamaMessage, with_ids
from switchyard.app.formats.ollama.options import OllamaDefaults, Options, with_options
from switchyard.app.formats.text.request import called
from switchyard.app.request import neutral
from switchyard.app.request.constraint import FORMS, ResponseFormat
from switchyard.app.request.generation import ModelName
from switchyard.app.request.neutral import SCORES, Table
from switchyard.app.request.sampling import TokenId
from switchyard.app.request.validation import Parameters, validate

Think = bool | Literal["low", "medium", "high"]
Form = Literal["", "json"] | dict[str, Any]

# Parameters of chats that have no meaning for a text without a template.
_OF_CHATS = (
    *("think", "thinking", "enable_thinking", "reasoning_effort", "reasoning_budget"),
    *("separate_reasoning", "include_reasoning", "chat_template_kwargs"),
)


class OllamaBody(OllamaDefaults, Chat):
    model_config = called("ollama")
    neutral: ClassVar[Table] = {
        **Chat.neutral,
        "template": ("",),
    }
    reasons: ClassVar[dict[str, str]] = {
        **Chat.reasons,
        "images": "this server's models can't see images",
        "template": "the model's own template is used",
    }
    unset: ClassVar[Table] = {
        **OllamaDefaults.unset,
        "response_format": ("",),
    }
    withheld: ClassVar[frozenset[str]] = frozenset(
        {"n", "max_completion_tokens", "stream_options", "return_progress", "timings_per_token"}
        | {"add_generation_prompt", "continue_final_message"}
        | SCORES.keys()
    )

    messages: list[Message] = Field(default=[])
    stream: bool = Field(True, description="Send the text as it is generated, as lines of JSON.")
    response_format: ResponseFormat | None = Field(
        None,
        alias="format",
        description='`"json"`: the answer is a JSON object. A JSON schema: the answer matches it.',
    )
    think: Think | None = Field(
        None,
        description="Whether to think, or at which level, for the model's chat template. False also"
        " leaves thoughts out of the answer. A template without such a switch ignores this; the"
        " response says so.",
    )
    keep_alive: float | None = Field(
        None,
        description="Seconds without a job after which the model is unloaded, or a duration such as"
        " `5m`; below 0: never; 0: after this answer. With an admin's API key, the value applies to"
        " all requests from now on. The values of other clients are ignored; the response says so.",
    )
    options: Options | None = Field(
        None,
        description="Parameters for sampling and length, with the same names as outside `options`.",
    )

    @field_validator("response_format", mode="before", json_schema_input_type=Form)
    @classmethod
    def _form(cls, value: Any) -> Any:
        if value == "json":
            return {"type": "json_object"}
        if isinstance(value, dict) and value.get("type") in FORMS:  # a format in OpenAI's form
            return value
        if not isinstance(value, dict):
            raise ValueError('must be "json" or a JSON schema')
        return {"type": "json_schema", "schema": value}

    @field_validator(
        "keep_alive",
        mode="before",
        json_schema_input_type=float | Annotated[str, Field(pattern=DURATION)],
    )
    @classmethod
    def _duration(cls, value: Any) -> Any:
        return seconds(value)

    def check(self) -> None:
        super().check()
        if self.think is not None and self.enable_thinking not in (None, bool(self.think)):
            raise BadRequest("think and enable_thinking contradict each other", "think")
        if isinstance(self.think, str) and self.reasoning_effort not in (None, self.think):
            raise BadRequest("think and reasoning_effort contradict each other", "think")

    @property
    def switched_thinking(self) -> tuple[str, bool] | None:
        return super().switched_thinking if self.think is None else ("think", bool(self.think))

    @property
    def names(self) -> dict[str, str]:
        ours = self.names_of_fields()
        names = {name: ours.get(field, field) for name, field in super().names.items()}
        effort = {"reasoning_effort": "think"} if isinstance(self.think, str) else {}
        return {**names, "max_new_tokens": ours["max_tokens"], **effort}

    def chat(self) -> "OllamaBody":
        """The request as an equivalent chat."""
        update: dict[str, Any] = {}
        if isinstance(self.think, str):
            update["reasoning_effort"] = self.think
        elif self.think is False:
            update["include_reasoning"] = False
        return self.model_copy(update=update)


class ChatRequest(OllamaBody):
    messages: list[OllamaMessage] = Field(  # type: ignore[assignment]
        default=[],
        fail_fast=True,
        description="The conversation. If the last message is the assistant's, the answer"
        " continues it. Without messages, the model is only loaded, or unloaded if `keep_alive` is"
        " 0.",
    )

    @field_validator("messages", mode="after")
    @classmethod
    def _named(cls, value: list[OllamaMessage]) -> list[OllamaMessage]:
        return list(with_ids(value))

    @property
    def is_empty(self) -> bool:
        return not self.messages

    def chat(self) -> OllamaBody:
        last = self.messages[-1]
        continues = last.role == "assistant" and not last.tool_calls
        return super().chat().model_copy(update={"continue_final_message": continues})


class GenerateRequest(OllamaBody):
    neutral: ClassVar[Table] = {**OllamaBody.neutral, "images": ([],)}
    unset: ClassVar[Table] = {
        **OllamaBody.unset,
        "context": ([],),
        "suffix": ("",),
        "system": ("",),
    }
    withheld: ClassVar[frozenset[str]] = OllamaBody.withheld | {
        *("messages", "tools", "tool_choice", "parallel_tool_calls", "documents"),
    }

    prompt: str = Field(
        "",
        description="The user's message. Empty: the model is only loaded, or unloaded if"
        " `keep_alive` is 0.",
    )
    suffix: str | None = Field(
        None,
        description="The answer fills the gap between the prompt and this text, without a chat"
        " template. Refused for models that have no tokens for this.",
    )
    system: str | None = Field(None, description="The system prompt.")
    context: list[TokenId] = Field(
        default=[],
        fail_fast=True,
        description="The `context` of an earlier answer, which this one continues.",
    )
    raw: bool = Field(
        False, description="The answer continues the prompt, without a chat template."
    )

    @property
    def is_empty(self) -> bool:
        return not (self.prompt or self.suffix or self.raw)

    @property
    def is_plain(self) -> bool:
        """Whether the prompt bypasses the chat template."""
        return self.raw or self.suffix is not None

    @property
    def names(self) -> dict[str, str]:
        return {**super().names, "prompt": "prompt"}

    def check(self) -> None:
        super().check()
        if not self.is_plain:
            return
        why = "raw" if self.raw else "suffix"
        if self.raw and self.suffix is not None:
            raise BadRequest("suffix: can't be given with raw", "suffix")
        for name in ("system", "context"):
            if getattr(self, name):
                raise BadRequest(f"{name}: can't be given with {why}", name)
        if self.raw and not self.prompt:
            raise BadRequest("prompt: must not be empty with raw", "prompt")
        for name in self.model_fields_set.intersection(_OF_CHATS):
            neutral.note(name)

    def chat(self) -> OllamaBody:
        system = [Message(role="system", content=self.system)] if self.system else []
        user = Message(role="user", content=self.prompt)
        return super().chat().model_copy(update={"messages": [*system, user]})


class ModelRequest(Parameters):
    """The body of requests about one model."""

    neutral: ClassVar[Table] = {"verbose": (False, True), "insecure": (False, True)}

    model: ModelName = None
    stream: bool = Field(True, description="Whether the answer consists of lines of JSON.")

    @classmethod
    def other_names(cls) -> Mapping[str, str]:
        return {"name": "model"}


class ShowRequest(ModelRequest):
    neutral: ClassVar[Table] = {
        **ModelRequest.neutral,
        **dict.fromkeys(("system", "template"), ("",)),
        "options": ({},),
    }
    withheld: ClassVar[frozenset[str]] = frozenset({"stream"})


Kind = TypeVar("Kind", ChatRequest, GenerateRequest)


def _read(kind: type[Kind], body: dict[str, Any]) -> Kind:
    options = body.get("options")
    request = validate(kind, {name: body[name] for name in body if name != "options"})
    if options is None:
        return request
    found: Kind = with_options(request, options)
    return found


def chat(body: dict[str, Any]) -> ChatRequest:
    """Parses a request for a chat from its JSON body. Raises BadRequest."""
    return _read(ChatRequest, body)


def generate(body: dict[str, Any]) -> GenerateRequest:
    """Parses a request to generate text from its JSON body. Raises BadRequest."""
    return _read(GenerateRequest, body)
