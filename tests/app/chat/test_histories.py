"""Every shape of a conversation, in every format that has any, as the template gets it."""

import json

import pytest

TEMPLATE = "{{ messages | tojson }}{% if tools %}{% endif %}"


def user(text):
    return {"role": "user", "content": text}


def answer(text=None, *calls, thoughts=None):
    """`calls`: their identifiers."""
    message = {"role": "assistant", "content": text}
    if thoughts:
        message["reasoning_content"] = thoughts
    if calls:
        message["tool_calls"] = [
            {
                "id": identifier,
                "type": "function",
                "function": {"name": f"f{identifier}", "arguments": {"a": None}},
            }
            for identifier in calls
        ]
    return message


def result(identifier, text):
    return {"role": "tool", "tool_call_id": identifier, "content": text}


HISTORIES = {
    "two of the user in a row": [user("a"), user("b"), answer("x"), user("c")],
    "two of the assistant in a row": [user("a"), answer("x"), answer("y"), user("b")],
    "text beside a call": [user("a"), answer("x", "1"), result("1", "r"), user("b")],
    "a call alone": [user("a"), answer(None, "1"), result("1", "r"), answer("x"), user("b")],
    "two calls": [user("a"), answer(None, "1", "2"), result("1", "r"), result("2", "s")],
    "one call behind the other": [
        user("a"),
        *(answer("x", "1", thoughts="t"), result("1", "r")),
        *(answer(None, "2", thoughts="u"), result("2", "s")),
        user("b"),
    ],
    "thoughts alone": [user("a"), answer(thoughts="t"), user("b")],
    "thoughts before text": [user("a"), answer("x", thoughts="t"), user("b")],
    "thoughts before each of two": [
        user("a"),
        *(answer("x", thoughts="t"), answer("y", thoughts="u")),
        user("b"),
    ],
    "a call without a result": [user("a"), answer("x", "1"), user("b")],
    "of two calls one without a result": [user("a"), answer("x", "1", "2"), result("2", "s")],
    "a result without a call": [user("a"), result("1", "r"), user("b")],
    "a result first of all": [result("1", "r"), user("a")],
    "a call at the end": [user("a"), answer(None, "1")],
}

# Where a format says something else than a chat does.
MERGED = {  # Anthropic's
    "two of the user in a row": [user("a\nb"), answer("x"), user("c")],
    "two of the assistant in a row": [user("a"), answer("x\ny"), user("b")],
    "thoughts before each of two": [user("a"), answer("x\ny", thoughts="t\nu"), user("b")],
}


def as_chat(messages):
    for message in messages:
        calls = [
            {**call, "function": {**call["function"], "arguments": '{"a": null}'}}
            for call in message.get("tool_calls", [])
        ]
        yield {**message, "tool_calls": calls} if calls else message


def as_anthropic(messages):
    for message in messages:
        blocks = []
        if message["role"] == "tool":
            identifier, text = message["tool_call_id"], message["content"]
            blocks = [{"type": "tool_result", "tool_use_id": identifier, "content": text}]
            yield {"role": "user", "content": blocks}
            continue
        if thoughts := message.get("reasoning_content"):
            blocks.append({"type": "thinking", "thinking": thoughts, "signature": "s"})
        if text := message["content"]:
            blocks.append({"type": "text", "text": text})
        for call in message.get("tool_calls", []):
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            blocks.append({"type": "tool_use", "id": call["id"], "name": name, "input": arguments})
        yield {"role": message["role"], "content": blocks}


def as_responses(messages):
    for message in messages:
        if message["role"] == "tool":
            identifier, text = message["tool_call_id"], message["content"]
            yield {"type": "function_call_output", "call_id": identifier, "output": text}
            continue
        if thoughts := message.get("reasoning_content"):
            text = {"type": "reasoning_text", "text": thoughts}
            yield {"type": "reasoning", "summary": [], "content": [text]}
        if text := message["content"]:
            yield {"role": message["role"], "content": text}
        for call in message.get("tool_calls", []):
            item = {"type": "function_call", "call_id": call["id"], "arguments": '{"a": null}'}
            yield {**item, "name": call["function"]["name"]}


@pytest.fixture
def told(chat):
    """What the template gets of a request."""

    def told(url, **body):
        asked = chat(body, template=TEMPLATE, tool_format="hermes", url=url)
        messages = json.loads(asked.prompt)
        for message in messages:
            if message["role"] == "assistant":  # without text it is one of nothing
                message["content"] = message.get("content") or None
        return messages

    return told


@pytest.mark.parametrize("shape", HISTORIES)
def test_each_shape_of_a_chat_reaches_the_template(told, shape):
    messages = list(as_chat(HISTORIES[shape]))
    assert told("/v1/chat/completions", messages=messages) == HISTORIES[shape]


# Of Responses: what a turn may have beside that.
SUMMARY = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "t", "x": None}]}
TOLD = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "u"}]}
SAYS = {"role": "assistant", "content": "x"}
PARTS = [{"type": "output_text", "text": text, "logprobs": None} for text in "xy"]
SAYS_TWICE = {"role": "assistant", "content": PARTS}
CALLS = {"type": "function_call", "call_id": "1", "name": "f1", "arguments": '{"a": null}'}
GIVES = {"type": "function_call_output", "call_id": "1"}
GIVES |= {"output": [{"type": "input_text", "text": "r", "detail": None}]}
TOOLS = {"type": "additional_tools", "tools": []}


@pytest.mark.parametrize(
    ("items", "messages"),
    [
        *((list(as_responses(messages)), messages) for messages in HISTORIES.values()),
        ([user("a"), SUMMARY, SAYS], [user("a"), answer("x", thoughts="t")]),
        ([user("a"), SUMMARY | TOLD, SAYS], [user("a"), answer("x", thoughts="u")]),
        (
            [user("a"), {**SUMMARY, "summary": [], "encrypted_content": "?"}, SAYS],
            [user("a"), answer("x")],
        ),
        (
            [user("a"), TOLD, SUMMARY, SAYS],
            [user("a"), answer(thoughts="u"), answer("x", thoughts="t")],
        ),
        ([user("a"), TOLD, SAYS, SAYS_TWICE], [user("a"), answer("x", thoughts="u"), answer("xy")]),
        ([user("a"), SAYS, TOLD, SAYS_TWICE], [user("a"), answer("x"), answer("xy", thoughts="u")]),
        ([user("a"), CALLS, SAYS, user("b")], [user("a"), answer("x", "1"), user("b")]),
        ([CALLS, GIVES, user("a")], [answer(None, "1"), result("1", "r"), user("a")]),
        ([user("a"), SAYS, GIVES], [user("a"), answer("x"), result("1", "r")]),
        ([TOOLS, user("a"), TOOLS, SAYS], [user("a"), answer("x")]),
    ],
)
def test_each_shape_of_responses_reaches_the_template(told, items, messages):
    assert told("/v1/responses", input=items) == messages


def says(role, *contents):
    """With texts as blocks."""
    blocks = [{"type": "text", "text": one} if isinstance(one, str) else one for one in contents]
    return {"role": role, "content": blocks}


def gives(identifier, content):
    return {"type": "tool_result", "tool_use_id": identifier, "content": content}


THINKS = {"type": "thinking", "thinking": "t", "signature": None}
USES = [
    {"type": "tool_use", "id": identifier, "name": f"f{identifier}", "input": {"a": None}}
    for identifier in "12"
]
SHOWN = [{"type": "text", "text": "s", "citations": None}]
RESULTS = [result("1", "r"), result("2", "s")]


@pytest.mark.parametrize(
    ("blocks", "messages"),
    [
        *(
            (list(as_anthropic(messages)), MERGED.get(shape, messages))
            for shape, messages in HISTORIES.items()
            if shape != "a call at the end"
        ),
        ([says("user", "a", "b")], [user("a\nb")]),
        ([user("a"), says("user", "b")], [user("a\nb")]),
        (
            [user("a"), says("assistant", THINKS), says("assistant", "x"), user("b")],
            [user("a"), answer("x", thoughts="t"), user("b")],
        ),
        (
            [
                says("assistant", THINKS, *USES),
                says("user", gives("1", "r"), gives("2", SHOWN), "b"),
            ],
            [answer(None, "1", "2", thoughts="t"), *RESULTS, user("b")],
        ),
        (
            [user("a"), says("assistant", USES[0]), says("user", "b", gives("1", "r"))],
            [user("a"), answer(None, "1"), user("b"), result("1", "r")],
        ),
        ([says("user", gives("1", "r"), "a")], [result("1", "r"), user("a")]),
        ([says("user", gives("1", [])), says("user", "a")], [result("1", ""), user("a")]),
    ],
)
def test_each_shape_of_messages_reaches_the_template(told, blocks, messages):
    assert told("/v1/messages", messages=blocks, max_tokens=5) == messages


def test_a_model_without_tools_reads_letters_of_all_languages_as_they_are(chat):
    called = answer(None, "1")
    called["tool_calls"][0]["function"]["arguments"] = '{"city": "\\u017bory"}'
    tool = {"type": "function", "function": {"name": "f", "description": "Łódź"}}
    prompt = chat({"messages": [user("a"), called, result("1", "r")], "tools": [tool]}).prompt
    assert '"description": "Łódź"' in prompt and '{"city": "Żory"}' in prompt


CALL = '<tool_call>\n{"name": "f1", "arguments": {"a": null}}\n</tool_call>\n'
FIRST, SECOND = (f"<tool_response>\n{text}\n</tool_response>\n" for text in "rs")
IN_PARTS = {**result("2", "s"), "content": [{"type": "text", "text": "s"}]}


@pytest.mark.parameter("messages[].content[].type messages[].content[].text messages[].tool_calls")
@pytest.mark.parameter("messages[].tool_calls[].function messages[].tool_calls[].function.name")
@pytest.mark.parameter("messages[].tool_calls[].function.arguments", "/v1/chat/completions")
@pytest.mark.parametrize(
    ("messages", "prompt"),
    [
        (
            [user("a"), answer(None, "1"), result("1", "r"), IN_PARTS, user("b")],
            f"user\na\nassistant\n{CALL}user\n{FIRST}{SECOND}user\nb\n",
        ),
        ([user("a"), answer("x", "1"), user("b")], f"user\na\nassistant\nx\n{CALL}user\nb\n"),
        ([result("1", "r")], f"user\n{FIRST}"),
    ],
)
def test_calls_and_results_are_turns_of_a_model_without_tools(chat, messages, prompt):
    assert chat({"messages": list(as_chat(messages))}).prompt == f"{prompt}assistant\n"
