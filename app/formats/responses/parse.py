"""Request bodies of OpenAI's Responses API, and their conversion to chats. Pure."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Discriminator, Field, Tag, field_validator

from switchyard.app.chat.request import Chat
from switchyard.app.chat.thinking import HowToThink
from switchyard.app.chat.tools import MAX_TOOLS
from switchyard.app.exceptions import BadRequest
from switchyard.app.formats.responses.items import AnyItem, clean, to_chat
from switchyard.app.formats.responses.tools import (
    AnyTool,
    ToolChoice,
    choice_in_chat,
    functions,
)
from switchyard.app.request import neutral
from switchyard.app.request.generation import MAX_LOGPROBS, Generation, Tokens
from switchyard.app.request.names import Called
from switchyard.app.request.neutral import ANY, OFF, Table
from switchyard.app.request.validation import TAG, Finite, Object, renaming, validate, without_nulls


class TextFormat(BaseModel):
    model_config = Finite

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextConfig(Object):
    place: ClassVar[str] = "text"
    neutral: ClassVar[Table] = {"verbosity": ANY}

    format: TextFormat = Field(
        TextFormat(), description="`text`, `json_object`, or `json_schema` with a `schema`."
    )


class ReasoningConfig(Object):
    """The `reasoning` parameter. Answers contain the thoughts themselves, not summaries."""

    place: ClassVar[str] = "reasoning"
    neutral: ClassVar[Table] = {"context": ANY, "generate_summary": ANY, "summary": ANY}

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = Field(
        None,
        description="Passed to the model's chat template. If the template doesn't use it, the"
        " response says so.",
    )


PLACES = {"reasoning_effort": "reasoning.effort", "response_format": "text.format"}
LOGPROBS = "message.output_text.logprobs"  # the value of `include` that requests logprobs
MAX_METADATA = 16  # OpenAI's limit


class ResponsesChat(Chat):
    @property
    def names(self) -> dict[str, str]:
        names = super().names
        places = {**PLACES, **self.said_names}
        if names["constraint"] == "response_format":
            names["constraint"] = places["response_format"]
        return {
            **names,
            "prompt": "input",
            "messages": "input",
            "max_new_tokens": "max_output_tokens",
            **places,
        }


class ResponseRequest(Generation, HowToThink):
    neutral: ClassVar[Table] = {
        **Generation.neutral,
        "background": OFF,
        "client_metadata": ANY,
        "conversation": (),
        "max_tool_calls": (),
        "prompt": (),
        "truncation": ("auto", "disabled"),
    }
    reasons: ClassVar[dict[str, str]] = {
        "background": "an answer without a waiting client would be lost",
        "conversation": "use previous_response_id, or send the whole conversation as input",
        "max_tool_calls": "this server runs no tools",
        "prompt": "there are no stored prompts",
    }

    withheld: ClassVar[frozenset[str]] = frozenset(
        {"max_tokens", "n", "return_progress", "stream_options", "timings"} | {"timings_per_token"}
    )

    input: Annotated[
        Annotated[str, Field(min_length=1), Tag(f"{TAG}string")]
        | Annotated[list[AnyItem], Field(min_length=1, fail_fast=True), Tag(f"{TAG}list")],
        Discriminator(lambda value: f"{TAG}list" if isinstance(value, list) else f"{TAG}string"),
    ] = Field(
        description="The user's text, or the whole conversation: items of type `message`,"
        " `function_call`, `function_call_output`, `reasoning`; at most 2048, with 10,000 parts in"
        " total."
    )
    previous_response_id: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        None,
        description="The `id` of a stored response, whose conversation `input` continues. If"
        " this client has no such response, the request gets a 404.",
    )
    store: bool = Field(
        True,
        description="Keep the response and its conversation in memory for `previous_response_id`,"
        " for `store_timeout` seconds.",
    )
    instructions: str | None = Field(
        None,
        description="The system prompt, only for this response.",
    )
    max_output_tokens: Annotated[Tokens | None, Called(others=("max_tokens",))] = Field(
        None,
        description="Maximum number of new tokens, including thoughts, within the context."
        " Default: the setting `default_max_tokens`.",
    )
    tools: list[AnyTool] = Field(
        default=[],
        max_length=MAX_TOOLS,
        fail_fast=True,
        description="Functions that the model may call; the name of a function in a `namespace`"
        " is `namespace__function`. Other types are left out; the response says so.",
    )
    tool_choice: ToolChoice | None = Field(
        None,
        description="As in chats, but a function's name is a sibling of its `type`.",
    )
    parallel_tool_calls: bool = Field(True, description="As in chats.")
    text: TextConfig = Field(TextConfig(), description="The form of the answer.")
    reasoning: ReasoningConfig = Field(
        ReasoningConfig(), description="The effort to spend on thinking before the answer."
    )
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] = Field(
        default=[],
        max_length=16,
        fail_fast=True,
        description=f"`{LOGPROBS}`: return the log-probability of each token of the text."
        " `reasoning.encrypted_content` is ignored; the response says so.",
    )
    top_logprobs: int | None = Field(
        None,
        ge=0,
        le=MAX_LOGPROBS,
        description="Number of most probable tokens at each position. Ignored if"
        " `include` doesn't request logprobs; the response says so.",
    )
    metadata: dict[str, str] = Field(
        default={}, max_length=MAX_METADATA, description="Repeated in the answer."
    )
    prompt_cache_key: str | None = Field(
        None, description="Returned in the answer; the prefix cache needs no key."
    )
    safety_identifier: str | None = Field(None, description="Repeated in the answer.")

    @field_validator("input", mode="before")
    @classmethod
    def _clean_input(cls, value: Any) -> Any:
        return clean(value) if isinstance(value, list) else value

    @field_validator("metadata", mode="before")
    @classmethod
    def _is_small(cls, value: Any) -> Any:
        # Checked before pydantic checks each entry.
        if isinstance(value, dict) and len(value) > MAX_METADATA:
            raise ValueError(f"must have at most {MAX_METADATA} entries")
        return value

    @field_validator("text", mode="before")
    @classmethod
    def _clean_object(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        given = without_nulls(value)
        if isinstance(form := given.get("format"), dict):
            given["format"] = without_nulls(form)
        return given

    @field_validator("tools", mode="before")
    @classmethod
    def _clean_tools(cls, value: Any) -> Any:
        is_list = isinstance(value, list)
        return [without_nulls(t) if isinstance(t, dict) else t for t in value] if is_list else value

    def check(self) -> None:
        super().check()
        if any(name != LOGPROBS for name in self.include):
            neutral.note("include")
        if self.top_logprobs is not None and not self.wants_logprobs:
            neutral.note("top_logprobs")

    @property
    def wants_logprobs(self) -> bool:
        return LOGPROBS in self.include

    @property
    def _effort_and_form(self) -> dict[str, Any]:
        """The thinking effort and the format of the answer, as in a chat. Raises BadRequest."""
        nested = {
            "reasoning_effort": self.reasoning.effort,
            "response_format": _response_format(self.text.format),
        }
        return self.beside(nested, PLACES)

    def _told_form(self) -> dict[str, Any]:
        """The requested format, as the response repeats it."""
        if self.response_format is None:
            return _given(self.text.format)
        told = _given(self.response_format)
        return {**told.pop("json_schema", {}), **told}

    def messages(self) -> list[dict[str, Any]]:
        """The messages of the input, as in a chat."""
        if isinstance(self.input, str):
            return [{"role": "user", "content": self.input}]
        return list(to_chat(self.input))

    def chat(self, messages: list[dict[str, Any]]) -> ResponsesChat:
        """The request as a chat of `messages`, after the instructions. Raises BadRequest."""
        shared = self.model_fields_set & Generation.model_fields.keys()
        values = {name: getattr(self, name) for name in shared}
        if self.instructions:
            messages = [{"role": "system", "content": self.instructions}, *messages]
        if not messages:
            raise BadRequest("input: contains no text", "input")
        values |= {
            "messages": messages,
            **self.thinking_given,
            "max_completion_tokens": self.max_output_tokens,
            "tools": list(functions(self.tools)),
            "tool_choice": self.tool_choice and choice_in_chat(self.tool_choice),
            **self._effort_and_form,
        }
        if self.wants_logprobs:
            values |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        if "parallel_tool_calls" in self.model_fields_set:
            values["parallel_tool_calls"] = self.parallel_tool_calls
        with renaming({**PLACES, **{name: name for name in self.model_fields_set}}):
            return validate(ResponsesChat, values).said_as(self)

    def echo(self) -> dict[str, Any]:
        """The members of the response that repeat parameters of the request, except `store`."""
        return {
            "background": False,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "metadata": self.metadata,
            "parallel_tool_calls": self.parallel_tool_calls,
            "previous_response_id": self.previous_response_id,
            "prompt_cache_key": self.prompt_cache_key,
            "reasoning": {"effort": self._effort_and_form["reasoning_effort"], "summary": None},
            "safety_identifier": self.safety_identifier,
            "service_tier": "default",
            "temperature": self.temperature,
            "text": {"format": self._told_form(), "verbosity": "medium"},
            "tool_choice": (
                _given(self.tool_choice)
                if isinstance(self.tool_choice, BaseModel)
                else self.tool_choice or "auto"
            ),
            "tools": [_given(tool) for tool in self.tools],
            "top_logprobs": self.top_logprobs or 0,
            "top_p": self.top_p,
            "truncation": "disabled",
            "user": self.user,
        }


def response(body: dict[str, Any]) -> ResponseRequest:
    """Parses a request from its JSON body. Raises BadRequest."""
    return validate(ResponseRequest, body)


def _given(value: BaseModel) -> dict[str, Any]:
    """The value as the client sent it."""
    return value.model_dump(by_alias=True, exclude_none=True)


def _response_format(form: TextFormat) -> dict[str, Any] | None:
    match form.type:
        case "text":
            return None
        case "json_object":
            return {"type": "json_object"}
    schema = form.model_dump(by_alias=True, exclude={"type"}, exclude_none=True)
    return {"type": "json_schema", "json_schema": schema}
