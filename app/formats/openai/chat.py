"""Renders chats as bodies of OpenAI's API. Pure, except that `Answer` may end a job."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from switchyard import engine
from switchyard.app.chat.answer import Answer
from switchyard.app.chat.request import Chat
from switchyard.app.delivery.render import Body, TextBody
from switchyard.app.formats.logprobs import TokenNames, chat_logprobs
from switchyard.app.formats.openai.render import OpenAIHead, OpenAIRender, PromptLogprobs, start
from switchyard.app.formats.shapes import delta, ending
from switchyard.app.parts.parts import Arguments, Part, Reasoning, Text, ToolCall


class ChatRender(OpenAIRender):
    def __init__(
        self,
        head: OpenAIHead,
        request: Chat,
        answers: Mapping[str, Answer],
        names: TokenNames,
    ) -> None:
        super().__init__(head, request, answers, names)
        self._answers = list(answers.values())
        self._is_scored = request.asked_logprobs is not None
        self._has_tools = bool(request.offer.tools)

    @property
    def _reasoning_tokens(self) -> int:
        return sum(answer.reasoning_tokens for answer in self._answers)

    def _whole(self, usage: dict[str, Any]) -> dict[str, Any]:
        told = self._request.return_token_ids
        choices = [
            {
                "index": i,
                "message": _message(answer.parts),
                "logprobs": self._show(answer.logprobs),
                **_ending(answer),
                **({"token_ids": answer.token_ids} if told else {}),
            }
            for i, answer in enumerate(self._answers)
        ]
        prompt = {"prompt_token_ids": self._prompt_of(0)} if told else {}
        return {
            **start(self._head, "chat.completion"),
            **prompt,
            **self._of_prompt(self._answers[0]),
            "choices": choices,
            "usage": usage,
        }

    def _tell_prompt(self, body: dict[str, Any], choice: dict[str, Any], index: int) -> None:
        body["prompt_token_ids"] = self._prompt_of(index)

    def _opening(self, index: int, logprobs: PromptLogprobs) -> Iterator[Body]:
        # None, as in OpenAI's API, because some clients show an empty text as a separate part.
        content = None if self._has_tools else ""
        yield self._chunk(index, {"role": "assistant", "content": content}), ""

    def _more(self, index: int, event: engine.Chunk | engine.Finished) -> Iterator[Body]:
        answer = self._answers[index]
        told = event.logprobs if isinstance(event, engine.Chunk) else None
        logprobs = self._show(told) if told else None
        for part in answer.read(event):
            text = part.text if isinstance(part, Text) else ""
            yield self._chunk(index, delta(part), logprobs=logprobs), text
            logprobs = None
        if logprobs is not None:  # tokens whose text is held back or is not part of the answer
            yield self._chunk(index, {}, logprobs=logprobs), ""
        if answer.finished is not None:
            yield self._chunk(index, {}, _ending(answer)), ""

    def _text_body(self, index: int) -> TextBody | None:
        if self._is_scored or not self._answers[index].is_plain:
            return None
        return lambda text: self._chunk(index, delta(Text(text)))

    def empty(self, index: int) -> dict[str, Any]:
        return self._chunk(index, {})

    def _behind(self, usage: dict[str, Any]) -> dict[str, Any]:
        return {**start(self._head, "chat.completion.chunk"), "choices": [], "usage": usage}

    def _show(self, logprobs: Sequence[engine.TokenLogprob]) -> dict[str, Any] | None:
        return chat_logprobs(logprobs, self._names) if self._is_scored else None

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        end: dict[str, Any] | None = None,
        logprobs: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, **(end or ending(None))}
        return {**start(self._head, "chat.completion.chunk"), "choices": [choice]}


def _message(parts: Sequence[Part]) -> dict[str, Any]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    arguments: list[list[str]] = []  # the pieces of each call's arguments
    for part in parts:
        match part:
            case Text(text):
                texts.append(text)
            case Reasoning(text):
                thoughts.append(text)
            case ToolCall():
                calls.append(part)
                arguments.append([])
            case Arguments(index, text):
                arguments[index].append(text)
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "".join(texts) or (None if calls else ""),
        "refusal": None,
    }
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = [
            {
                "id": call.identifier,
                "type": "function",
                "function": {"name": call.name, "arguments": "".join(arguments[call.index])},
            }
            for call in calls
        ]
    return message


def _ending(answer: Answer) -> dict[str, Any]:
    return {**ending(answer.finished), "finish_reason": answer.finish_reason}
