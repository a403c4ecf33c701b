"""Every shape of a history that clients send, as the turns that it is to a chat template."""

import pytest

from switchyard.app.formats.anthropic import parse as anthropic
from switchyard.app.formats.responses import parse as responses

# Of Responses: thoughts, text, a call, its result, a user's text
R = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]}
S = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so", "x": None}]}
E = {"type": "reasoning", "summary": [], "encrypted_content": "?"}
B = {**S, **R}
M = {"role": "assistant", "content": "yes"}
P = {
    "role": "assistant",
    "content": [{"type": "output_text", "text": t, "logprobs": None} for t in ("a", "b")],
}
C = {"type": "function_call", "call_id": "1", "name": "add", "arguments": "{}"}
D = {**C, "call_id": "2"}
O = {"type": "function_call_output", "call_id": "1", "output": "3"}  # noqa: E741
Q = {**O, "call_id": "2", "output": [{"type": "input_text", "text": "4", "detail": None}]}
U = {"role": "user", "content": "u"}
A = {"type": "additional_tools", "tools": []}

# As a chat: thoughts, text, names of calls
hm, so, yes, ab = {"thoughts": "hm"}, {"thoughts": "so"}, {"text": "yes"}, {"text": "ab"}
one, two, both = {"calls": ["1"]}, {"calls": ["2"]}, {"calls": ["1", "2"]}
res_1, res_2, user = {"of": "1", "text": "3"}, {"of": "2", "text": "4"}, {"user": "u"}


def turns_of(chat):
    turns = []
    for message in chat.messages:
        form = message.template_form()
        if form["role"] == "user":
            turns.append({"user": form["content"]})
        elif form["role"] == "tool":
            turns.append({"of": form["tool_call_id"], "text": form["content"]})
        else:
            assert form["role"] == "assistant"
            calls = [call["id"] for call in form.get("tool_calls", ())]
            told = {
                "thoughts": form.get("reasoning_content"),
                "text": form["content"],
                "calls": calls,
            }
            turns.append({name: value for name, value in told.items() if value})
    return turns


@pytest.mark.parametrize(
    ("items", "turns"),
    [
        ([U, M], [user, yes]),
        ([U, R, M], [user, hm | yes]),
        ([U, S, M], [user, so | yes]),
        ([U, E, M], [user, yes]),
        ([U, B, M], [user, hm | yes]),
        ([U, P], [user, ab]),
        ([U, M, M], [user, yes, yes]),
        ([U, R, M, P], [user, hm | yes, ab]),
        ([U, M, R, P], [user, yes, hm | ab]),
        ([U, R, C], [user, hm | one]),
        ([U, R, M, C], [user, hm | yes | one]),
        ([U, M, C, D], [user, yes | both]),
        ([U, C, M, U], [user, yes | one, user]),
        ([U, C, D, O, Q], [user, both, res_1, res_2]),
        ([U, C, O, D, Q], [user, one, res_1, two, res_2]),
        ([U, R, C, O, R, D, Q, M], [user, hm | one, res_1, hm | two, res_2, yes]),
        ([U, R, S, M], [user, hm, so | yes]),
        ([O, U], [res_1, user]),
        ([C, U], [one, user]),
        ([A, U, A, M], [user, yes]),
        ([U, U], [user, user]),
        ([U, M, O], [user, yes, res_1]),
    ],
)
def test_items_are_turns(items, turns):
    asked = responses.response({"input": items})
    assert turns_of(asked.chat(asked.messages())) == turns


def says(role, *blocks):
    return {"role": role, "content": list(blocks)}


def text(what, **more):
    return {"type": "text", "text": what, **more}


def result(of, what):
    return {"type": "tool_result", "tool_use_id": of, "content": what}


THINKS = {"type": "thinking", "thinking": "hm", "signature": None}
CALLS = [{"type": "tool_use", "id": i, "name": "add", "input": {"a": None}} for i in ("1", "2")]
SHOWN = [text("4", citations=None)]
u, a = "user", "assistant"


@pytest.mark.parametrize(
    ("messages", "turns"),
    [
        ([says(u, text("u"))], [user]),
        ([says(u, text("u")), says(u, text("v"))], [{"user": "u\nv"}]),
        ([says(u, text("u"), text("v"))], [{"user": "u\nv"}]),
        ([{"role": u, "content": "u"}, says(u, text("v"))], [{"user": "u\nv"}]),
        ([says(u, text("u")), says(a, text("yes"))], [user, yes]),
        ([says(u, text("u")), says(a, THINKS, text("yes"))], [user, hm | yes]),
        ([says(u, text("u")), says(a, THINKS), says(a, text("yes"))], [user, hm | yes]),
        ([says(u, text("u")), says(a, text("a")), says(a, text("b"))], [user, {"text": "a\nb"}]),
        (
            [says(u, text("u")), says(a, text("yes"), *CALLS), says(u, result("1", "3"))],
            [user, yes | both, res_1],
        ),
        (
            [
                says(u, text("u")),
                says(a, THINKS, *CALLS),
                says(u, result("1", "3"), result("2", SHOWN), text("u")),
            ],
            [user, hm | both, res_1, res_2, user],
        ),
        (
            [
                says(u, text("u")),
                says(a, CALLS[0]),
                says(u, result("1", "3")),
                says(a, CALLS[1]),
                says(u, result("2", SHOWN)),
            ],
            [user, one, res_1, two, res_2],
        ),
        (
            [says(u, text("u")), says(a, CALLS[0]), says(u, text("u"), result("1", "3"))],
            [user, one, user, res_1],
        ),
        ([says(u, result("1", "3"), text("u"))], [res_1, user]),
        ([says(u, result("1", [])), says(u, text("u"))], [{"of": "1", "text": ""}, user]),
    ],
)
def test_messages_are_turns(messages, turns):
    asked = anthropic.message({"messages": messages, "max_tokens": 5})
    assert turns_of(asked.chat(frozenset(), True)) == turns
