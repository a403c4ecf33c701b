"""Frames that are not put together again, against those that are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard import engine
from switchyard.app.chat.answer import Answer
from switchyard.app.chat.request import chat as parse_chat
from switchyard.app.delivery.framing import (
    JSON_LINES,
    PLAIN_TEXT,
    SERVER_SENT_EVENTS,
    Framing,
    StreamWriter,
)
from switchyard.app.delivery.progress import WithProgress
from switchyard.app.delivery.render import MARK
from switchyard.app.delivery.timings import WithRunningTimings, WithTimings
from switchyard.app.formats import anthropic, kobold, ollama, plain
from switchyard.app.formats.anthropic.render import MessageRender
from switchyard.app.formats.kobold.render import KoboldRender
from switchyard.app.formats.logprobs import TokenNames
from switchyard.app.formats.ollama.render import OllamaRender
from switchyard.app.formats.openai import parse
from switchyard.app.formats.openai.chat import ChatRender
from switchyard.app.formats.openai.render import CompletionRender, OpenAIHead
from switchyard.app.formats.plain.render import GenerateRender
from switchyard.app.parts.call_formats import GENERIC
from switchyard.app.parts.choice import Choice
from switchyard.app.parts.parser import PartParser, Tags
from switchyard.engine.messages import Chunk, Finished, Prefill

HEAD = OpenAIHead("id-1", 1, 'a "model"', [(1, 2, 3)], "print")
THOUGHTS = Tags("<think>", "</think>")


def answer(**parser):
    return Answer(PartParser(**{"format": None, **parser}), lambda: None)


def asked(usage):
    options = {"include_usage": bool(usage), "continuous_usage_stats": usage == "continuous"}
    return {"stream": True, "stream_options": options}


def jobs(n=1):
    return {f"id-1-{i}": Choice() for i in range(n)}


def completion(n=1, usage=False, names=None):
    scored = {"logprobs": 0} if names else {}
    request = parse.completion({"prompt": "x", "n": n, **scored, **asked(usage)})
    return CompletionRender(HEAD, request, jobs(n), [None] * n, names)


def chat(usage=False, names=None, **parser):
    scored = {"logprobs": True} if names else {}
    messages = [{"role": "user", "content": "x"}]
    request = parse_chat({"messages": messages, **scored, **asked(usage)})
    return ChatRender(HEAD, request, {"id-1-0": answer(**parser)}, names)


def message(**parser):
    head = anthropic.render.MessageHead("id-1", "model", 3, (), "request")
    return MessageRender(head, answer(**parser))


def ollama_chat(**parser):
    head = ollama.render.OllamaHead("model", "now", 0.0, True, lambda token_id: b"")
    return OllamaRender(head, answer(**parser))


WAYS = {
    "completions": (completion, SERVER_SENT_EVENTS),
    "several choices": (lambda: completion(3), SERVER_SENT_EVENTS),
    "usage": (lambda: completion(usage=True), SERVER_SENT_EVENTS),
    "lines": (completion, JSON_LINES),
    "bare text": (completion, PLAIN_TEXT),
    "timings": (lambda: WithTimings(completion(), ["id-1-0"], 1), SERVER_SENT_EVENTS),
    "progress": (
        lambda: WithProgress(completion(), ["id-1-0"], lambda index: {"index": index}),
        SERVER_SENT_EVENTS,
    ),
    "chat": (chat, SERVER_SENT_EVENTS),
    "chat, usage": (lambda: chat(usage=True), SERVER_SENT_EVENTS),
    "chat, bare text": (chat, PLAIN_TEXT),
    "chat, thoughts": (lambda: chat(tags=THOUGHTS), SERVER_SENT_EVENTS),
    "messages": (message, anthropic.render.EVENTS),
    "messages, thoughts": (lambda: message(tags=THOUGHTS), anthropic.render.EVENTS),
    "messages, calls": (lambda: message(format=GENERIC), anthropic.render.EVENTS),
    "generate": (lambda: GenerateRender(jobs(), "id-1", "model"), plain.render.EVENTS),
    "ollama": (ollama_chat, ollama.render.LINES),
    "ollama, thoughts": (lambda: ollama_chat(tags=THOUGHTS), ollama.render.LINES),
    "ollama, calls": (lambda: ollama_chat(format=GENERIC), ollama.render.LINES),
    "kobold": (lambda: KoboldRender(jobs()), kobold.render.EVENTS),
}

texts = st.lists(
    st.text(max_size=5)
    | st.sampled_from(["<think>", "</think>", "<th", "<tool", '"', "\n", MARK, "\0"])
)


@pytest.mark.parametrize("way", WAYS)
@given(texts=texts, per_write=st.integers(1, 3))
def test_every_frame_is_what_it_would_be_by_itself(way, texts, per_write):
    make_render, framing = WAYS[way]
    num_choices = 3 if way == "several choices" else 1
    render = make_render()
    writer = StreamWriter(make_render(), framing, None, 5.0)
    for events in batches(texts, per_write, num_choices):
        frames = [framing.frame(body, text) for body, text in render(events)]
        assert writer.write(events) == [frame for frame in frames if frame]


@pytest.mark.parametrize("way", [way for way in WAYS if not way.endswith(", calls")])
def test_the_frames_of_mere_text_are_put_together_once(way):
    make_render, framing = WAYS[way]
    render = Counting(make_render())
    writer = StreamWriter(render, framing, None, 5.0)
    for i in range(20):
        [*_, frame] = writer.write([Chunk("id-1-0", f"text {i}", (i,))])
        assert f"text {i}".encode() in frame
    assert render.num_calls == 1


def test_what_is_numbered_goes_on_to_be():
    writer = StreamWriter(completion(), SERVER_SENT_EVENTS, "id-1", 5.0)
    frames = [writer.write([Chunk("id-1-0", "x", (i,))])[0] for i in range(3)]
    heads = [frame.partition(b"\n")[0] for frame in frames]
    assert heads == [b"id: id-1:1", b"id: id-1:2", b"id: id-1:3"]
    assert len({frame.partition(b"\n")[2] for frame in frames}) == 1


def test_a_text_ends_the_progress_that_was_told_before_it():
    writer = StreamWriter(completion(2), SERVER_SENT_EVENTS, None, 5.0)
    for text in "xyz":
        writer.write([Prefill("id-1-1", 1, 2)])
        assert writer.comment == b": prefill 1/2\n\n"
        writer.write([Chunk("id-1-0", text, (0,))])
        assert writer.comment == b""


def test_a_stream_that_begins_with_something_has_it_once():
    framing = Framing(SERVER_SENT_EVENTS.frame, opening=b"id: x\n")
    writer = StreamWriter(completion(), framing, None, 5.0)
    first, second = (writer.write([Chunk("id-1-0", "x", (i,))])[0] for i in range(2))
    assert first == b"id: x\n" + second
    assert writer.write([Finished("id-1-0", "stop", 1, 2, 0)])[0].startswith(b"data: ")


WHOLE = {  # by a tokenizer's names
    "logprobs": lambda names: completion(names=names),
    "logprobs of a chat": lambda names: chat(names=names),
    "timings so far": lambda _: WithRunningTimings(completion(), {"id-1-0": 3}),
    "tools": lambda _: chat(format=GENERIC, tools={"call": "call"}),
    "thoughts": lambda _: chat(tags=THOUGHTS, is_reasoning=True),
    "usage so far": lambda _: completion(usage="continuous"),
    "usage of a chat": lambda _: chat(usage="continuous"),
}


@pytest.mark.parametrize("way", WHOLE)
def test_what_may_tell_more_than_text_is_put_together_each_time(way, model_path):
    names = TokenNames(engine.Tokenizer(engine.ModelDir.read(model_path)), False)
    render = Counting(WHOLE[way](names))
    writer = StreamWriter(render, SERVER_SENT_EVENTS, None, 5.0)
    logprobs = (engine.TokenLogprob(5, -1.0),) if way.startswith("logprobs") else None
    for _ in range(3):
        writer.write([Chunk("id-1-0", "text", (5,), logprobs)])
    assert render.num_calls == 3


def batches(texts, size, num_choices):
    identifiers = [f"id-1-{i}" for i in range(num_choices)]
    events = [Prefill(identifiers[0], 1, 3)]
    events += [Chunk(identifiers[i % num_choices], text, (i,)) for i, text in enumerate(texts)]
    events += [Finished(i, "stop", 3, 5, 0) for i in identifiers]
    return [events[i : i + size] for i in range(0, len(events), size)]


class Counting:
    """How often a render puts bodies together."""

    def __init__(self, render):
        self.num_calls = 0
        self.text_body = render.text_body
        self._render = render

    def __call__(self, events):
        self.num_calls += 1
        return self._render(events)
