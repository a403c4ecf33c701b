"""Conversations that every family's template is tried with."""

import json

USER = {"role": "user", "content": "What is the weather in Kraków?"}
YES = {"role": "assistant", "content": "  Yes.\n"}
CALL = {
    "id": "callAAAA1",
    "type": "function",
    "function": {"name": "weather", "arguments": {"city": "Kraków", "days": 2}},
}
OTHER_CALL = {
    "id": "callAAAA2",
    "type": "function",
    "function": {"name": "time", "arguments": {"zone": 'say "x" \\ <b>'}},
}
RESULT = {"role": "tool", "tool_call_id": "callAAAA1", "content": '{"degrees": 21}'}
OTHER_RESULT = {"role": "tool", "tool_call_id": "callAAAA2", "content": "noon"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a city, in °C.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "time",
            "description": "The time.",
            "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}},
        },
    },
]


def calling(*calls: dict) -> dict:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def as_sent(message: dict) -> dict:
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


def said(*texts: str) -> list[dict]:
    """A conversation of a user and an assistant in turn."""
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]


SYSTEM = {"role": "system", "content": "Be brief.\n"}
PLAIN = {
    "a question": [USER],
    "a system message": [SYSTEM, USER],
    "two turns": [USER, YES, USER],
    "three turns with a system message": [SYSTEM, USER, YES, USER, YES, USER],
    "ends with the assistant": [USER, YES],
    "white space around": said("  a \n\n", "\tb ", "\n c"),
    "empty texts": said("", "", ""),
    "scripts": said("햏똠펲 토크 피신어", "အခွင့်အရေးများ", "עברית 🙂 اللغة"),
    "code": said("```py\nx = {'a': [1]}\n```\n{{ x }} {% if %}"),
    "thoughts": said("Why?", "<think>\nHm.\n</think>\n\nSo.", "And?"),
}
WITH_TOOLS = {
    "tools alone": [USER],
    "tools and a system message": [SYSTEM, USER],
    "a call": [USER, calling(CALL)],
    "a call and its result": [USER, calling(CALL), RESULT],
    "a call and an answer": [USER, calling(CALL), RESULT, YES, USER],
    "two calls and their results": [USER, calling(CALL, OTHER_CALL), RESULT, OTHER_RESULT],
}
