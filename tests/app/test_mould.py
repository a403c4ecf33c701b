"""Frames that are not put together anew, against those that are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard import engine
from switchyard.app.chat.answer import Answer
from switchyard.app.delivery.framing import JsonLines, PlainText, ServerSentEvents, StreamWriter
from switchyard.app.delivery.progress import WithProgress
from switchyard.app.delivery.render import MARK
from switchyard.app.delivery.timings import WithTimings
from switchyard.app.formats.anthropic.render import Head as MessageHead
from switchyard.app.formats.anthropic.render import MessageRender
from switchyard.app.formats.anthropic.routes import NamedEvents as MessageEvents
from switchyard.app.formats.kobold.render import KoboldEvents, KoboldRender
from switchyard.app.formats.llamacpp.render import LlamaCppEvents, LlamaCppRender
from switchyard.app.formats.openai.chat import ChatRender
from switchyard.app.formats.openai.logprobs import TokenNames
from switchyard.app.formats.openai.render import CompletionRender, Head, StreamRender
from switchyard.app.formats.plain.render import GenerateRender, NamedEvents
from switchyard.app.formats.text.answer import TextBodies
from switchyard.app.parts.call_formats import GENERIC
from switchyard.app.parts.parser import PartParser, Tags
from switchyard.engine.messages import Chunk, Finished, Prefill

HEAD = Head("id-1", 1, 'a "model"', "print")
THOUGHTS = Tags("<think>", "</think>")


def answer(**parser):
    return Answer(PartParser(**{"format": None, **parser}), lambda: None)


def completion(n=1, usage=False):
    identifiers = [f"id-1-{i}" for i in range(n)]
    return StreamRender(CompletionRender(HEAD, [None] * n, None), identifiers, n, usage)


def chat(usage=False, **parser):
    return StreamRender(ChatRender(HEAD, [answer(**parser)], None), ["id-1-0"], 1, usage)


def message(**parser):
    return MessageRender(MessageHead("id-1", "model", 3, ()), answer(**parser))


WAYS = {
    "completions": (completion, ServerSentEvents),
    "several choices": (lambda: completion(3), ServerSentEvents),
    "usage": (lambda: completion(usage=True), ServerSentEvents),
    "lines": (completion, JsonLines),
    "bare text": (completion, PlainText),
    "timings": (lambda: WithTimings(completion(), ["id-1-0"], 1), ServerSentEvents),
    "progress": (
        lambda: WithProgress(completion(), ["id-1-0"], lambda index: {"index": index}),
        ServerSentEvents,
    ),
    "chat": (chat, ServerSentEvents),
    "chat, usage": (lambda: chat(usage=True), ServerSentEvents),
    "chat, bare text": (chat, PlainText),
    "chat, thoughts": (lambda: chat(tags=THOUGHTS), ServerSentEvents),
    "messages": (message, MessageEvents),
    "messages, thoughts": (lambda: message(tags=THOUGHTS), MessageEvents),
    "generate": (
        lambda: TextBodies(GenerateRender("id-1", "model")),
        lambda: NamedEvents("id-1"),
    ),
    "kobold": (lambda: TextBodies(KoboldRender()), KoboldEvents),
    "llama.cpp": (lambda: TextBodies(LlamaCppRender("model", ())), LlamaCppEvents),
}

texts = st.lists(
    st.text(max_size=5) | st.sampled_from(["<think>", "</think>", "<th", '"', "\n", MARK, "\0"])
)


@pytest.mark.parametrize("way", WAYS)
@given(texts=texts, per_write=st.integers(1, 3))
def test_every_frame_is_what_it_would_be_by_itself(way, texts, per_write):
    make_render, make_framing = WAYS[way]
    num_choices = 3 if way == "several choices" else 1
    render, framing = make_render(), make_framing()
    writer = StreamWriter(make_render(), make_framing(), None, 5.0)
    for events in batches(texts, per_write, num_choices):
        frames = [framing.frame(body, text) for body, text in render(events)]
        assert writer.write(events) == [frame for frame in frames if frame]


@pytest.mark.parametrize("way", WAYS)
def test_the_frames_of_mere_text_are_put_together_once(way):
    make_render, make_framing = WAYS[way]
    render = Counting(make_render())
    writer = StreamWriter(render, make_framing(), None, 5.0)
    for i in range(20):
        [*_, frame] = writer.write([Chunk("id-1-0", f"text {i}", (i,))])
        assert f"text {i}".encode() in frame
    assert render.num_calls == 1


def test_what_is_numbered_goes_on_to_be():
    writer = StreamWriter(completion(), ServerSentEvents(), "id-1", 5.0)
    frames = [writer.write([Chunk("id-1-0", "x", (i,))])[0] for i in range(3)]
    heads = [frame.partition(b"\n")[0] for frame in frames]
    assert heads == [b"id: id-1:1", b"id: id-1:2", b"id: id-1:3"]
    assert len({frame.partition(b"\n")[2] for frame in frames}) == 1


@pytest.mark.parametrize("way", ["logprobs", "logprobs of a chat", "tools", "thoughts"])
def test_what_may_tell_more_than_text_is_put_together_each_time(way, model_path):
    names = TokenNames(engine.Tokenizer(engine.ModelDir.read(model_path)), False)
    match way:
        case "logprobs":
            body = CompletionRender(HEAD, [None], names)
        case "logprobs of a chat":
            body = ChatRender(HEAD, [answer()], names)
        case "tools":
            body = ChatRender(HEAD, [answer(format=GENERIC, tools=["call"])], None)
        case "thoughts":
            body = ChatRender(HEAD, [answer(tags=THOUGHTS, is_reasoning=True)], None)
    render = Counting(StreamRender(body, ["id-1-0"], 1, False))
    writer = StreamWriter(render, ServerSentEvents(), None, 5.0)
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
