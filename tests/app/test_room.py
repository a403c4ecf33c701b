"""A long input is refused by a full server for its length alone, before the work of tokenizing."""

import pytest

from tests.app.conftest import listed
from tests.app.refused import CHAT, COMPLETIONS, error_of
from tests.scripted import ScriptedBackend

LONG, SHORT = "x" * 16 * 40, "x" * 16 * 10  # at least 40 and 10 tokens; there is room for 30
USER = {"role": "user", "content": "x"}
CALL = {"id": "call00000", "function": {"name": "f", "arguments": LONG}}
TOOL = {"type": "function", "function": {"name": "f", "description": LONG}}
GAP = {"input_prefix": "x", "input_suffix": "x"}


@pytest.fixture
def full(make_client, gate, ask):
    """A client of a server with room for 30 more waiting tokens."""
    client = make_client(ScriptedBackend(gate=gate, max_active=1), max_pending_tokens=40)
    for _ in range(2):
        ask(client, {"prompt": [5] * 10, "max_tokens": 4})
    gate.step(3)
    listed(client, 2)
    yield client
    gate.open()


@pytest.mark.parametrize(
    ("url", "body"),
    [
        (COMPLETIONS, {"prompt": LONG}),
        (COMPLETIONS, {"prompt": [5] * 40}),
        (COMPLETIONS, {"prompt": [SHORT, [5] * 10, SHORT, [5]]}),
        (COMPLETIONS, {"prompt": SHORT, "n": 4}),
        (COMPLETIONS, {"prompt": SHORT, "best_of": 4}),
        (COMPLETIONS, {"prompt": "x", "suffix": LONG}),
        (CHAT, {"messages": [{"role": "user", "content": LONG}]}),
        (CHAT, {"messages": [{"role": "user", "content": SHORT}], "n": 4}),
        (CHAT, {"messages": [{"role": "assistant", "content": "x", "reasoning_content": LONG}]}),
        (CHAT, {"messages": [USER, {"role": "assistant", "tool_calls": [CALL]}]}),
        (CHAT, {"messages": [USER], "documents": [{"text": LONG}]}),
        (CHAT, {"messages": [USER], "chat_template_kwargs": {"thinking": LONG}}),
        (CHAT, {"messages": [USER], "tools": [TOOL]}),
        ("/generate", {"prompt": LONG}),
        ("/api/v1/generate", {"prompt": SHORT, "n": 4}),
        ("/completion", {"prompt": [SHORT, [5, LONG], [5] * 10, "x"]}),
        ("/infill", {**GAP, "input_prefix": LONG}),
        ("/infill", {**GAP, "input_suffix": LONG}),
        ("/infill", {**GAP, "prompt": LONG}),
        ("/infill", {**GAP, "input_extra": [{"text": SHORT, "filename": SHORT}] * 2}),
    ],
    ids=lambda value: str(value).replace("x" * 16, "~")[:60],
)
def test_a_full_server_refuses_a_long_input_untokenized(full, monkeypatch, url, body):
    tokenizer = full.models.get().tokenizer
    monkeypatch.setattr(tokenizer, "encode", None)
    monkeypatch.setattr(tokenizer, "encode_template", None)
    error = error_of(full.post(url, json=body), 429)
    assert error["message"] == "the queue is full: 10 of 40 prompt tokens are waiting"
