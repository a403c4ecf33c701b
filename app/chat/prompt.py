"""A conversation to its prompt, and to what is to be made of the answer. Request threads."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import engine
from app.body import dumps
from app.chat import generic
from app.chat.formats import FORMATS, GENERIC, Format, recognise
from app.chat.parser import PartParser, Tags
from app.chat.request import Chat
from app.chat.tools import Offer
from app.chat_template import ChatTemplate, Conversation
from app.config import Settings
from app.services import services


@dataclass(frozen=True, slots=True)
class Prompt:
    token_ids: tuple[int, ...]
    offer: Offer
    format: Format
    tags: Tags | None  # None: thoughts, if there are any, stay in the text
    is_reasoning: bool  # the prompt has opened the thoughts already

    def parser(self) -> PartParser:
        """Of one answer."""
        return PartParser(
            self.format if self.offer.tools else None,
            self.offer.names,
            self.tags,
            self.is_reasoning,
            self.offer.max_calls,
        )


def prepare(request: Chat, model: engine.Engine) -> Prompt:
    """Raises what `Engine.check_room` does, InvalidJob, PromptTooLong."""
    if request.offer.must_call:
        raise engine.InvalidJob("tool_choice: calls can't be enforced yet", "tool_choice")
    if any(tool.function.strict for tool in request.offer.tools):
        raise engine.InvalidJob("tools: strict can't be enforced yet", "tools")
    texts = "".join(_texts(request))
    # Before the work of tokenizing: tokens are not longer than 16 characters on average.
    model.check_room(request.n, len(texts) // 16 * request.n)
    model.tokenizer.check_length(texts, model.info.max_seq_len)
    text = render(request, model)
    settings = services().settings
    tags = Tags(settings.reasoning_start, settings.reasoning_end)
    has_tags = all(tags) and request.separate_reasoning
    return Prompt(
        token_ids=model.tokenizer.encode_template(text, model.info.max_seq_len),
        offer=request.offer,
        format=_format(_template(model), settings) or GENERIC,
        tags=tags if has_tags else None,
        is_reasoning=has_tags and _is_reasoning(request, text, tags),
    )


def render(request: Chat, model: engine.Engine) -> str:
    """The text of the prompt, escaped as its tokenizer takes it. Raises InvalidJob."""
    template = _template(model)
    variables = _variables(request, template)
    messages = [message.template_form() for message in request.messages]
    if "developer" not in template.source:
        messages = [
            {**message, "role": "system"} if message["role"] == "developer" else message
            for message in messages
        ]
    tools = [tool.template_form() for tool in request.offer.tools]
    if "tools" not in template.variables or not _format(template, services().settings):
        messages, tools = generic.without_tools(messages, tools), []
    if request.add_generation_prompt is None:
        add_generation_prompt = not request.continue_final_message
    else:
        add_generation_prompt = request.add_generation_prompt
    conversation = Conversation(
        messages,
        tools,
        request.documents,
        variables,
        add_generation_prompt,
        request.continue_final_message,
    )
    return template.render(conversation, model.tokenizer.escape)


def _template(model: engine.Engine) -> ChatTemplate:
    return services().chat_templates[model.config.name]


def _format(template: ChatTemplate, settings: Settings) -> Format | None:
    """That the template asks its model for; None if that isn't known."""
    if settings.tool_format != "auto":
        return FORMATS[settings.tool_format]
    return recognise(template.source)


def _variables(request: Chat, template: ChatTemplate) -> Mapping[str, Any]:
    """Raises InvalidJob for those that would have no effect."""
    template.check_variables(request.chat_template_kwargs, "chat_template_kwargs")
    if request.documents and "documents" not in template.variables:
        raise engine.InvalidJob("the model's chat template doesn't use documents", "documents")
    if request.reasoning_effort is None:
        return request.chat_template_kwargs
    template.check_variables(["reasoning_effort"], "reasoning_effort")
    return {**request.chat_template_kwargs, "reasoning_effort": request.reasoning_effort}


def _is_reasoning(request: Chat, text: str, tags: Tags) -> bool:
    """Whether the prompt ends within thoughts."""
    if request.continue_final_message:
        begun = request.messages[-1].text
        if begun.rfind(tags.start) > begun.rfind(tags.end):
            return True
    return text.rstrip().endswith(tags.start)


def _texts(request: Chat) -> list[str]:
    """All that a client can make long."""
    texts = []
    for message in request.messages:
        texts += [message.text, message.reasoning_content or ""]
        texts += [call.function.arguments for call in message.tool_calls]
    if request.offer.tools:
        texts.append(dumps([tool.model_dump() for tool in request.offer.tools]).decode())
    if request.documents or request.chat_template_kwargs:
        texts.append(dumps([request.documents, request.chat_template_kwargs]).decode())
    return texts
