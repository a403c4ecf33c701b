"""Builds the prompt of a chat, with the parser and constraint for its answer. Runs on request
threads.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from switchyard import engine
from switchyard.app.chat import calls
from switchyard.app.chat.adapt import generic
from switchyard.app.chat.adapt.generic import Escape, Message
from switchyard.app.chat.adapt.own_tags import escape_once, keep_begun, keep_tags
from switchyard.app.chat.closing import closing_ids
from switchyard.app.chat.request import HOW_TO_THINK, SWITCHES, Chat
from switchyard.app.chat.template import ChatTemplate, Conversation
from switchyard.app.chat.tools import Offer
from switchyard.app.engine_settings import ModelSettings
from switchyard.app.http.body import dumps
from switchyard.app.parts.call_formats import FORMATS, GENERIC, CallFormat
from switchyard.app.parts.parser import PartParser, Tags
from switchyard.app.request import neutral


@dataclass(frozen=True, slots=True)
class Prompt:
    token_ids: tuple[int, ...]
    offer: Offer
    format: CallFormat
    tags: Tags | None  # None: any thoughts stay in the text
    is_reasoning: bool  # the prompt ends inside thoughts
    after: str  # constraints apply only after this text; empty: from the first token
    constraint: engine.Constraint | None  # for calls, and for the form of other output
    calls_first: bool  # an answer that doesn't begin with a call has no calls
    forced: engine.Forced | None  # the end of thoughts, forced when the budget is used up
    shown_token_ids: tuple[int, ...]  # special tokens that are tags around thoughts or calls
    end_token_ids: tuple[int, ...]  # see `closing_ids`
    # Thoughts and calls, in which the client's stop strings don't apply.
    spans: tuple[engine.Span, ...]

    def parser(self) -> PartParser:
        """A parser for one choice of the answer."""
        return PartParser(
            self.format if self.offer.tools else None,
            self.offer.names,
            self.tags,
            self.is_reasoning,
            self.offer.max_calls,
            self.calls_first,
        )

    def fit(self, job: engine.Job) -> engine.Job:
        """The job, completed with what this prompt determines: the constraint, the forced end of
        thoughts, the shown tokens, the end tokens and the spans. Raises InvalidJob.
        """
        constraint = self.constraint or job.constraint
        if constraint is not None:
            constraint = replace(constraint, after=self.after)
        return replace(
            job,
            constraint=constraint,
            forced=self.forced,
            shown_token_ids=self.shown_token_ids,
            end_token_ids=self.end_token_ids,
            spans=self.spans,
        )


class Prompts:
    """Builds one model's prompts from its chat template and its settings for thoughts and tools."""

    def __init__(
        self, model: engine.Engine, template: ChatTemplate, settings: ModelSettings
    ) -> None:
        self._model = model
        self._template = template
        self._tags = Tags(settings.reasoning_start, settings.reasoning_end)
        # None: the format that the chat template shows.
        self._set_format = FORMATS.get(settings.tool_format)

    @property
    def variables(self) -> Set[str]:
        """The names of the variables that the chat template uses both with and without tools."""
        return self._template.variables & self._template.chosen(has_tools=True).variables

    @cached_property
    def end_token_ids(self) -> tuple[int, ...]:
        """The template's closing token; see `closing_ids`."""
        return closing_ids(self._template, self._model.tokenizer)

    @property
    def has_thoughts(self) -> bool:
        """Whether the chat template contains the tags that the settings define for thoughts."""
        return all(self._tags) and self._tags.start in self._template.source

    def max_calls(self, request: Chat) -> int | None:
        """The maximum number of calls in an answer. If the chat template allows only one call per
        message, the maximum is 1, because the model was trained that way. This limit doesn't apply
        if the client explicitly requests several calls.
        """
        offer = request.offer
        takes_two = self._template.chosen(has_tools=True).traits.takes_two_calls
        if not offer.tools or takes_two or request.wants_parallel_calls:
            return offer.max_calls
        return 1

    def _may_think(self, request: Chat, text: str) -> bool:
        """Whether the model may start thinking on its own after the prompt `text`."""
        is_decided = text.rstrip().endswith(tuple(self._tags))
        return self.has_thoughts and not is_decided and not request.continue_final_message

    def prepare(self, request: Chat) -> Prompt:
        """The prompt of a request. Raises InvalidJob, PromptTooLong, and the exceptions of
        `Engine.check_room`.
        """
        model = self._model
        num_characters = sum(map(len, _texts(request)))
        model.check_room(request.n, model.tokenizer.guess(num_characters) * request.n)
        text = self.render(request, model.info.max_seq_len)
        tags = self._tags
        is_reasoning = all(tags) and _is_reasoning(request, text, tags)
        offer = replace(request.offer, max_calls=self.max_calls(request))
        if offer != request.offer:
            neutral.note(request.names.get("parallel_tool_calls", "parallel_tool_calls"))
        format = self._format(self._template.chosen(bool(offer.tools))) or GENERIC
        tokenizer = model.tokenizer
        constraint = calls.constraint(offer, format, model, request.constraint)
        form = constraint or request.constraint
        if form is not None and self._may_think(request, text):
            constraint = engine.constraints.after_thoughts(form, *tags, tokenizer.tag_ids)
        return Prompt(
            token_ids=tokenizer.encode_template(text, model.info.max_seq_len),
            offer=offer,
            format=format,
            tags=tags if all(tags) and request.separate_reasoning else None,
            is_reasoning=is_reasoning,
            after=tags.end if is_reasoning else "",
            constraint=constraint,
            calls_first=request.constraint is not None,
            forced=_end_of_thoughts(request.reasoning_budget, tags, tokenizer),
            shown_token_ids=tuple(
                tokenizer.tag_ids[tag]
                for tag in (*tags, *(format.tags if offer.tools else ()))
                if tag in tokenizer.tag_ids
            ),
            end_token_ids=self.end_token_ids,
            spans=(
                *_spans_of_thoughts(tags, is_reasoning),
                *(format.spans if offer.tools else ()),
            ),
        )

    def encode(self, request: Chat, max_tokens: int) -> tuple[int, ...]:
        """The tokens of the prompt. Raises InvalidJob, PromptTooLong."""
        text = self.render(request, max_tokens)
        return self._model.tokenizer.encode_template(text, max_tokens)

    def render(self, request: Chat, max_tokens: int) -> str:
        """The text of the prompt, escaped for the tokenizer.

        Raises InvalidJob. Raises PromptTooLong before any work if the text is so long that it must
        have more than `max_tokens` tokens.
        """
        self._model.tokenizer.check_length("".join(_texts(request)), max_tokens)
        tools = [tool.template_form() for tool in request.offer.tools]
        template = self._template.chosen(bool(tools))
        messages = [message.template_form() for message in request.messages]
        if "developer" not in template.source:
            messages = [
                {**message, "role": "system"} if message["role"] == "developer" else message
                for message in messages
            ]
        escape = escape_once(self._model.tokenizer.escape)
        messages = self._with_own_tags(template, messages, request.continue_final_message, escape)
        messages, tools = self._as_text(template, messages, tools, escape)
        if request.add_generation_prompt is None:
            add_generation_prompt = not request.continue_final_message
        else:
            add_generation_prompt = request.add_generation_prompt
        conversation = Conversation(
            messages,
            tools,
            request.documents,
            _variables(request, template),
            add_generation_prompt,
            request.continue_final_message,
        )
        text = template.render(conversation, escape)
        return text if request.reasoning_budget is None else self._with_thoughts(text)

    def _with_own_tags(
        self, template: ChatTemplate, messages: list[Message], continues: bool, escape: Escape
    ) -> list[Message]:
        """The messages, with the tags of the assistant's thoughts unescaped if the template looks
        for them.
        """
        if not all(self._tags):
            return messages
        tags, source = self._tags, template.source
        kept = [
            keep_tags(message, tags, source, escape) if message["role"] == "assistant" else message
            for message in messages
        ]
        return [*kept[:-1], keep_begun(messages[-1], tags, escape)] if continues else kept

    def _as_text(
        self,
        template: ChatTemplate,
        messages: list[Message],
        tools: list[dict[str, Any]],
        escape: Escape,
    ) -> tuple[list[Message], list[dict[str, Any]]]:
        """The conversation, with everything that the template doesn't render written as text into
        the messages.
        """
        traits, format = template.traits, self._format(template)
        is_known = format is not None
        format = format or GENERIC
        if not (is_known and traits.shows_calls):
            messages = generic.with_calls_as_text(messages, format, escape)
        if not (is_known and traits.shows_results):
            messages = generic.with_results_as_text(messages, escape)
        if "tools" not in template.variables or not is_known:
            messages, tools = generic.with_offer(messages, tools, format, escape), []
        return messages, tools

    def _format(self, template: ChatTemplate) -> CallFormat | None:
        """The format of calls that the template shows the model; None if it is unknown."""
        return self._set_format or template.traits.format

    def _with_thoughts(self, text: str) -> str:
        """The prompt, extended if necessary so that it ends inside thoughts. Otherwise the forced
        end of thoughts could occur in an answer without thoughts. Raises InvalidJob if the template
        has no thoughts, or closes them in the prompt.
        """
        tags = self._tags
        if not self.has_thoughts:
            message = "the model's chat template doesn't use the server's tags for thoughts"
            raise engine.InvalidJob(message, "reasoning_budget")
        if text.rstrip().endswith(tags.start):
            return text
        if text.rstrip().endswith(tags.end):
            raise engine.InvalidJob(
                "the chat template ends the thoughts in the prompt, so the answer can't have any",
                "reasoning_budget",
            )
        return f"{text}{tags.start}\n"


def _variables(request: Chat, template: ChatTemplate) -> Mapping[str, Any]:
    """The template variables that the request sets.

    Switches for thinking that have no effect are listed in `X-Switchyard-Ignored`. Raises
    InvalidJob for any other variable without effect.
    """
    variables = dict(request.chat_template_kwargs)
    for name in HOW_TO_THINK & variables.keys() - template.variables:
        del variables[name]
        neutral.note(f"chat_template_kwargs.{name}")
    template.check_variables(variables, "chat_template_kwargs")
    if request.documents and "documents" not in template.variables:
        raise engine.InvalidJob("the model's chat template doesn't use documents", "documents")
    if request.reasoning_effort is not None:
        if "reasoning_effort" in template.variables:
            variables["reasoning_effort"] = request.reasoning_effort
        else:
            neutral.note(request.names.get("reasoning_effort", "reasoning_effort"))
    if (said := request.switched_thinking) is not None:
        name, is_on = said
        switches = SWITCHES & template.variables
        variables |= dict.fromkeys(switches, is_on)
        if not switches:
            neutral.note(name)
    return variables


def _is_reasoning(request: Chat, text: str, tags: Tags) -> bool:
    """Whether the prompt ends inside thoughts."""
    if request.continue_final_message:
        begun = request.messages[-1].text
        if begun.rfind(tags.start) > begun.rfind(tags.end):
            return True
    return text.rstrip().endswith(tags.start)


def _spans_of_thoughts(tags: Tags, is_reasoning: bool) -> list[engine.Span]:
    if not all(tags):
        return []
    return [engine.Span("" if is_reasoning else tags.start, tags.end, is_first=True)]


def _end_of_thoughts(
    budget: int | None, tags: Tags, tokenizer: engine.Tokenizer
) -> engine.Forced | None:
    if budget is None:
        return None
    token_ids = tokenizer.encode_template(tags.end, max_tokens=64)
    return engine.Forced(budget, unless_text=tags.end, token_ids=token_ids)


def _texts(request: Chat) -> list[str]:
    """All texts in the request whose length the client chooses."""
    texts = []
    for message in request.messages:
        texts += [message.text, message.reasoning_content or ""]
        texts += [call.function.arguments for call in message.tool_calls]
    if request.offer.tools:
        texts.append(dumps([tool.model_dump() for tool in request.offer.tools]).decode())
    if request.documents or request.chat_template_kwargs:
        texts.append(dumps([request.documents, request.chat_template_kwargs]).decode())
    return texts
