"""The parameters of a chat request, in OpenAI's format. Requests in other chat formats are
converted to this format.
"""

import functools
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from switchyard.app.chat.messages import Message, fault_of
from switchyard.app.chat.thinking import HowToThink
from switchyard.app.chat.tools import MAX_TOOLS, Offer, Tool, ToolChoice, offer
from switchyard.app.exceptions import BadRequest
from switchyard.app.request.generation import MAX_LOGPROBS, Tokens
from switchyard.app.request.neutral import OFF, Table
from switchyard.app.request.scored import Scored
from switchyard.app.request.validation import Object, validate

MAX_MESSAGES = 2048  # OpenAI's limit
MAX_PARTS = 10_000  # parts of all messages in a chat


# Template variables that switch thinking: Qwen's and DeepSeek's.
SWITCHES = frozenset({"enable_thinking", "thinking"})
HOW_TO_THINK = SWITCHES | {"reasoning_effort"}


class ThinkingSwitch(Object):
    """The `thinking` parameter of DeepSeek's API."""

    type: Literal["enabled", "disabled"] = Field(description="Whether to think.")


class Chat(Scored, HowToThink):
    neutral: ClassVar[Table] = {
        **Scored.neutral,
        "add_special_tokens": OFF,
        "audio": (),
        "best_of": (1,),
        "chat_template": (),
        "echo": OFF,
        "function_call": ("none", "auto"),
        "functions": ([],),
        "mm_processor_kwargs": ({},),
        "modalities": (["text"],),
        "plugins": ([],),
        "reasoning": ({},),
        "reasoning_format": ("auto",),
        "web_search_options": (),
    }
    reasons: ClassVar[dict[str, str]] = {
        "chat_template": "the model's own template is used",
        "prompt_template": "the model's own template is used",
        "function_call": "use tool_choice",
        "functions": "use tools",
    }

    messages: list[Message] = Field(
        min_length=1,
        fail_fast=True,
        json_schema_extra={"maxItems": MAX_MESSAGES},
        description=f"The conversation, of at most {MAX_PARTS:,} parts, which the model's own chat"
        " template renders. Refused if the template refuses it, or if it is longer than the"
        " context.",
    )
    max_completion_tokens: Tokens | None = Field(
        None, description="The same as `max_tokens`. Refused if they differ."
    )
    logprobs: bool = Field(
        False, description="Return the log-probability of each token; see Logprobs."
    )
    top_logprobs: int | None = Field(
        None,
        ge=0,
        le=MAX_LOGPROBS,
        description="Number of most probable tokens at each position. Values above 0 are"
        " refused without `logprobs`.",
    )
    tools: list[Tool] = Field(
        default=[],
        max_length=MAX_TOOLS,
        fail_fast=True,
        description="Functions that the model may call; other types are refused.",
    )
    tool_choice: ToolChoice | None = Field(
        None,
        description="`none`: the model doesn't see the tools; `auto`: it may call some; `required`:"
        " it must call at least one. A function: the model must call it once. `allowed_tools`: the"
        " model sees only those listed. Refused without tools, except for `none` and `auto`.",
    )
    parallel_tool_calls: bool = Field(
        True,
        description="False: the answer ends with its first tool call. If the model's chat"
        " template allows one call per message, false is the default; the response says so.",
    )
    separate_reasoning: bool = Field(
        True, description="False: thoughts stay in the text, as the model writes them."
    )
    include_reasoning: bool = Field(True, description="False: the answer doesn't include thoughts.")
    thinking: ThinkingSwitch | None = Field(
        None, description="The same as `enable_thinking`. Refused if they differ."
    )
    add_generation_prompt: bool | None = Field(
        None,
        description="False: the prompt ends with the last message, without the beginning of an"
        " answer.",
    )
    continue_final_message: bool = Field(
        False,
        description="The answer continues the last message, which must be the assistant's."
        " Refused with `add_generation_prompt`.",
    )
    documents: list[dict[str, str]] = Field(
        default=[],
        max_length=MAX_MESSAGES,
        description="Texts for the model's chat template, with fields like `title` and `text`;"
        " refused if the template doesn't use them.",
    )

    @field_validator("messages", mode="before")
    @classmethod
    def _limit(cls, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        if len(value) > MAX_MESSAGES:
            raise ValueError(f"must have at most {MAX_MESSAGES} items")
        contents = [item.get("content") for item in value if isinstance(item, dict)]
        if sum(len(c) for c in contents if isinstance(c, list)) > MAX_PARTS:
            raise ValueError(f"must have at most {MAX_PARTS} parts in total")
        return value

    def check(self) -> None:
        super().check()
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise BadRequest(
                "max_tokens and max_completion_tokens are the same parameter,"
                " but their values differ",
                "max_tokens",
            )
        said = {self.enable_thinking, self.thinking and self.thinking.type == "enabled"} - {None}
        if len(said) > 1:
            raise BadRequest("thinking and enable_thinking contradict each other", "thinking")
        if self.top_logprobs and not self.logprobs:
            raise BadRequest("top_logprobs needs logprobs: true", "top_logprobs")
        for i, message in enumerate(self.messages):
            if fault := fault_of(message):
                where = f"messages.{i}.{fault[0]}"
                is_missing = fault[1] == "is missing"
                code = "missing_required_parameter" if is_missing else "invalid_value"
                raise BadRequest(f"{where}: {fault[1]}", where, code)
        if self.continue_final_message:
            if self.add_generation_prompt:
                raise BadRequest(
                    "set add_generation_prompt or continue_final_message, not both",
                    "continue_final_message",
                )
            last = self.messages[-1]
            if last.role != "assistant" or last.content is None or last.tool_calls:
                raise BadRequest(
                    "continue_final_message: the last message must be text from the assistant",
                    "continue_final_message",
                )
        _ = self.offer

    @property
    def switched_thinking(self) -> tuple[str, bool] | None:
        """The parameter that switches thinking on or off, and its value. None if no such parameter
        is given.
        """
        if self.enable_thinking is not None:
            name = "enable_thinking"
            return self.said_names.get(name, name), self.enable_thinking
        return None if self.thinking is None else ("thinking", self.thinking.type == "enabled")

    @functools.cached_property
    def offer(self) -> Offer:
        """The tools shown to the model. Raises BadRequest if `tool_choice` contradicts `tools`."""
        return offer(self.tools, self.tool_choice, self.parallel_tool_calls)

    @property
    def wants_parallel_calls(self) -> bool:
        """Whether the client explicitly requests several calls."""
        return self.parallel_tool_calls and "parallel_tool_calls" in self.model_fields_set

    @property
    def asked_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def asked_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def names(self) -> dict[str, str]:
        limit = "max_tokens" if self.max_tokens else "max_completion_tokens"
        names = {**super().names, "prompt": "messages", "max_new_tokens": limit}
        names |= self.said_names
        if self.offer.tools and names.get("constraint", "constraint") == "constraint":
            names["constraint"] = "tools"
        return names


def chat(body: dict[str, Any]) -> Chat:
    """Parses a chat request from its JSON body. Raises BadRequest."""
    return validate(Chat, body)
