"""Prompts: what transformers makes of a chat, and nobody's text as a control token."""

import json
import random
from collections.abc import Callable

import jinja2
import pytest
import transformers

from tests.tokenizers.chats import CALL, PLAIN, RESULT, TOOLS, USER, WITH_TOOLS, calling, said
from tests.tokenizers.families import WRITTEN

NUM_TEXTS = 200
NO_GAPS = ("llama2", "llama3_1", "llama3_2", "gptoss")
A_CHAT = 25  # texts; an odd number ends with the user's


@pytest.fixture(scope="module")
def theirs(asked):
    if asked.family in WRITTEN:
        pytest.skip("its template is written for these tests")
    return transformers.PreTrainedTokenizerFast.from_pretrained(asked.path)


def takes_tools(theirs) -> bool:
    return "tools" in theirs.chat_template


def as_sent(message):
    """As a client sends it: arguments are a text."""
    if "tool_calls" not in message:
        return message
    calls = [
        {
            **one,
            "function": {**one["function"], "arguments": json.dumps(one["function"]["arguments"])},
        }
        for one in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def rendered(theirs, messages, tools, **variables):
    """transformers' text, or None if the template refuses the chat."""
    try:
        return theirs.apply_chat_template(messages, tools, tokenize=False, **variables)
    except (jinja2.TemplateError, TypeError):
        return None


def assert_equal(asked, theirs, messages, tools, variables):
    """Text and tokens. A call without text has an empty one where the template takes no None."""
    body = {"messages": [as_sent(m) for m in messages], **variables}
    if tools:
        body["tools"] = tools
    expected = rendered(theirs, messages, tools, **variables)
    if expected is None:
        messages = [{**m, "content": m["content"] or ""} for m in messages]
        expected = rendered(theirs, messages, tools, **variables)
    if expected is None:  # a chat that the template refuses: arranged otherwise, with all in it
        prompt = asked.post("/apply-template", body)["prompt"]
        for call in (call for m in messages for call in m.get("tool_calls", ())):
            assert call["function"]["name"] in prompt
        return
    assert asked.post("/apply-template", body)["prompt"] == expected
    ids = theirs(expected, add_special_tokens=False)["input_ids"]
    assert asked.post("/tokenize", body)["tokens"] == ids


@pytest.mark.parametrize("name", PLAIN)
def test_a_chat_is_what_transformers_makes_of_it(asked, theirs, name):
    for prompts in (True, False):
        assert_equal(asked, theirs, PLAIN[name], None, {"add_generation_prompt": prompts})


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_a_chat_with_tools_is_what_transformers_makes_of_it(asked, theirs, name):
    if not takes_tools(theirs):
        pytest.skip("its template takes no tools")
    assert_equal(asked, theirs, WITH_TOOLS[name], TOOLS, {"add_generation_prompt": True})


def test_a_prompt_begins_with_one_bos_at_most(asked):
    tokenizer = asked.engine.tokenizer
    for prompt in ({"prompt": "Hi"}, {"messages": [USER]}):
        token_ids = asked.post("/tokenize", prompt)["tokens"]
        texts = [tokenizer.token(i) for i in token_ids]
        bos = asked.engine.model_dir.special_token("bos_token")
        assert texts.count(bos) <= 1
        assert bos not in texts[1:]


# Control tokens


def spelling(asked) -> list[str]:
    """Texts that spell all added tokens, and their neighbours."""
    contents = [t.content for t in asked.tokenizer.get_added_tokens_decoder().values()]
    drawn = random.Random(0)
    drawn.shuffle(contents)
    contents *= -(-2 * NUM_TEXTS // len(contents))
    size = -(-len(contents) // NUM_TEXTS)
    groups = [contents[i : i + size] for i in range(0, len(contents), size)]
    return [drawn.choice(("", " ", "\n", "Yes")).join(["hi", *group, "ok"]) for group in groups]


def chat(asked, texts):
    asked.post("/v1/chat/completions", {"messages": said(*texts), "max_tokens": 1})


def continued(asked, texts):
    body = {"messages": said(*texts, texts[0]), "max_tokens": 1, "continue_final_message": True}
    asked.post("/v1/chat/completions", body)


def responses(asked, texts):
    body = {"input": said(*texts), "instructions": texts[0], "max_output_tokens": 1}
    asked.post("/v1/responses", body)


def messages(asked, texts):
    turns = [
        {**turn, "content": [{"type": "text", "text": turn["content"]}]} for turn in said(*texts)
    ]
    asked.post("/v1/messages", {"messages": turns, "system": texts[0], "max_tokens": 1})


def tool_texts(asked, texts):
    """In all places that a chat with tools has."""
    a, b, c, d, e, *_ = texts
    function = {**CALL["function"], "arguments": {a: b}}
    tool = {**TOOLS[0]["function"], "description": d}
    body = {
        "messages": [
            {"role": "system", "content": c},
            {"role": "user", "content": e},
            as_sent(calling({**CALL, "function": function})),
            {**RESULT, "content": a},
        ],
        "tools": [{"type": "function", "function": tool}],
        "max_tokens": 1,
    }
    asked.post("/v1/chat/completions", body)


def tool_blocks(asked, texts):
    a, b, c, d, e, *_ = texts
    use = {"type": "tool_use", "id": "callAAAA1", "name": "weather", "input": {a: b}}
    result = {"type": "tool_result", "tool_use_id": "callAAAA1", "content": c}
    schema = TOOLS[0]["function"]["parameters"]
    body = {
        "messages": [
            {"role": "user", "content": e},
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]},
        ],
        "tools": [{"name": "weather", "description": d, "input_schema": schema}],
        "max_tokens": 1,
    }
    asked.post("/v1/messages", body)


def tool_items(asked, texts):
    a, b, c, d, e, *_ = texts
    arguments = json.dumps({a: b})
    call = {"type": "function_call", "call_id": "callAAAA1", "name": "weather"}
    schema = TOOLS[0]["function"]["parameters"]
    body = {
        "input": [
            {"role": "user", "content": e},
            {**call, "arguments": arguments},
            {"type": "function_call_output", "call_id": "callAAAA1", "output": c},
        ],
        "tools": [{"type": "function", "name": "weather", "description": d, "parameters": schema}],
        "max_output_tokens": 1,
    }
    asked.post("/v1/responses", body)


def text(path: str, field: str, **more: object) -> Callable:
    def send(asked, texts):
        asked.post(path, {field: "\n".join(texts), **more})

    return send


def infill(asked, texts):
    halves = {"input_prefix": "\n".join(texts[::2]), "input_suffix": "\n".join(texts[1::2])}
    if asked.family in NO_GAPS:
        pytest.skip("its vocabulary has no tokens for a gap")
    asked.post("/infill", {**halves, "n_predict": 1})


ROUTES = {
    "chat": chat,
    "chat, continued": continued,
    "responses": responses,
    "messages": messages,
    "completions": text("/v1/completions", "prompt", max_tokens=1),
    "plain": text("/generate", "prompt", max_tokens=1),
    "llama.cpp": text("/completion", "prompt", n_predict=1, parse_special=False),
    "infill": infill,
}
TOOL_ROUTES = {"chat": tool_texts, "messages": tool_blocks, "responses": tool_items}


def added(asked, send, texts) -> list[str]:
    """The added tokens in the prompt that a request makes of texts."""
    send(asked, texts)
    tokens = asked.tokenizer.get_added_tokens_decoder()
    return [tokens[i].content for i in asked.jobs[-1].prompt if i in tokens]


@pytest.mark.parametrize("route", ROUTES)
def test_no_text_becomes_a_control_token(asked, route):
    send = ROUTES[route]
    texts = spelling(asked)
    expected = added(asked, send, ["x"] * A_CHAT)
    for i in range(0, len(texts) - A_CHAT, A_CHAT):
        assert added(asked, send, texts[i : i + A_CHAT]) == expected


@pytest.mark.parametrize("route", TOOL_ROUTES)
def test_no_text_of_tools_becomes_a_control_token(asked, route):
    send = TOOL_ROUTES[route]
    texts = spelling(asked)
    expected = added(asked, send, ["x"] * 5)
    for i in range(0, len(texts) - 5, 5):
        assert added(asked, send, texts[i : i + 5]) == expected
