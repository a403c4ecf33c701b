"""The most and the least that a request may say, and a little more."""

import pytest

from switchyard.app.chat.request import Chat
from switchyard.app.exceptions import BadRequest
from switchyard.app.formats.openai.parse import Completion
from switchyard.app.request.validation import validate

USER = {"role": "user", "content": "x"}
PARTS = [{"type": "text", "text": "x"}]


def tools(*names):
    return [{"type": "function", "function": {"name": name}} for name in names]


def form(name):
    return {"type": "json_schema", "json_schema": {"name": name, "schema": {}}}


COMPLETION = [
    *(("n", 128, 129), ("n", 1, 0)),
    *(("max_tokens", 1, 0), ("max_tokens", 2**31 - 1, 2**31), ("max_tokens", -1, -2)),
    ("min_tokens", 0, -1),
    *(("stop", ["x"] * 16, ["x"] * 17), ("stop", "x" * 1000, "x" * 1001), ("stop", [], [""])),
    ("stop_token_ids", [5] * 64, [5] * 65),
    ("stop_token_ids", [0, 2**31 - 1], [2**31]),
    *(("seed", 2**63 - 1, 2**63), ("seed", -(2**63), -(2**63) - 1)),
    *(("priority", 2**31 - 1, 2**31), ("priority", -(2**31), -(2**31) - 1)),
    *(("timeout", 86400, 86401), ("timeout", 0.001, 0)),
    *(("top_k", -1, -2), ("top_k", 100_000, 100_001)),
    ("dry_range", -1, -2),
    ("banned_strings", ["x"] * 64, ["x"] * 65),
    *(("banned_strings", ["x" * 200], ["x" * 201]), ("banned_strings", [], [""])),
    ("dry_sequence_breakers", ["x"] * 64, ["x"] * 65),
    ("dry_sequence_breakers", ["x" * 100], ["x" * 101]),
    ("dry_sequence_breakers", '["x"]', '[""]'),
    *((f"{kind}_token_ids", [5] * 4096, [5] * 4097) for kind in ("banned", "allowed")),
    ("logit_bias", {str(i): 1 for i in range(1024)}, {str(i): 1 for i in range(1025)}),
    ("logit_bias", {"5": -100, "6": 100}, {"5": -101}),
    ("logit_bias", {"0": 1, "999999999": 1}, {"05": 1}),
    ("logprobs", 20, 21),
    ("choice", [str(i) for i in range(10_000)], ["x"] * 10_001),
    ("response_format", form("x" * 64), form("x" * 65)),
    ("cfg_scale", -10, -11),  # which may lead away from the prompt
]
CHAT = [
    ("messages", [USER] * 2048, [USER] * 2049),
    ("messages", [{**USER, "content": PARTS * 10_000}], [{**USER, "content": PARTS * 10_001}]),
    ("messages", [USER], []),
    ("tools", tools(*(f"f{i}" for i in range(512))), tools(*(f"f{i}" for i in range(513)))),
    ("tools", tools("x" * 128), tools("x" * 129)),
    ("tools", tools("aZ0_.:/@-"), tools("")),
    ("top_logprobs", 20, 21),
    ("reasoning_budget", 0, -1),
    ("reasoning_budget", 2**31 - 1, 2**31),
    ("chat_template_kwargs", *({str(i): 1 for i in range(n)} for n in (64, 65))),
    ("documents", [{"text": "x"}] * 2048, [{"text": "x"}] * 2049),
]


@pytest.mark.parametrize(("name", "most", "more"), COMPLETION)
def test_a_completion_may_say_so_much_and_no_more(name, most, more):
    guided = {"negative_prompt": "y"} if name == "cfg_scale" else {}
    check(Completion, {"prompt": "x", **guided}, name, most, more)


@pytest.mark.parametrize(("name", "most", "more"), CHAT)
def test_a_chat_may_say_so_much_and_no_more(name, most, more):
    check(Chat, {"messages": [USER], "logprobs": True}, name, most, more)


def check(kind, body, name, most, more):
    assert validate(kind, {**body, name: most})
    with pytest.raises(BadRequest) as told:
        validate(kind, {**body, name: more})
    assert told.value.param.split(".")[0] == name
