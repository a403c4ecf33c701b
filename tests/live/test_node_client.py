"""The `openai` client for Node, which puts a stream together by itself, and the `anthropic` one."""

import json

import pytest

from tests.conftest import run_node
from tests.live.test_anthropic_client import ONE_TOOL, SWITCH
from tests.live.test_openai_tools import CITY

HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def stream(server):
    """What the client has made of a streamed chat: how many frames had choices, and the whole."""

    def ask(**parameters):
        body = {"model": "tiny", "messages": HELLO, **parameters}
        return run_node("tests/node/chat.mjs", f"{server.url}/v1", json.dumps(body))

    return ask


def test_a_streamed_chat_is_the_same_as_a_whole_one(server, stream):
    same = {"max_completion_tokens": 12, "temperature": 0, "n": 2, "logprobs": True}
    got = stream(**same, stream_options={"include_usage": True})
    body = {"messages": HELLO, **same}
    whole = server.post("/v1/chat/completions", body).json()
    assert got["frames"] > 12
    for mine, expected in zip(got["completion"]["choices"], whole["choices"], strict=True):
        assert mine["message"]["content"] == expected["message"]["content"]
        assert mine["finish_reason"] == expected["finish_reason"]
        tokens = [choice["logprobs"]["content"] for choice in (mine, expected)]
        assert [t["bytes"] for t in tokens[0]] == [t["bytes"] for t in tokens[1]]
    assert got["completion"]["usage"]["total_tokens"] == whole["usage"]["total_tokens"]


def test_streamed_calls_of_tools_make_the_whole(stream):
    function = {"name": "get_time", "parameters": CITY, "strict": True}
    tools = [{"type": "function", "function": function}]
    got = stream(tools=tools, tool_choice="required", parallel_tool_calls=False)
    [choice] = got["completion"]["choices"]
    assert choice["finish_reason"] == "tool_calls"
    [call] = choice["message"]["tool_calls"]
    assert call["id"].startswith("call_") and call["function"]["name"] == "get_time"
    assert json.loads(call["function"]["arguments"])["city"] in ("Rome", "Oslo")
    assert got["frames"] > 3


def test_the_runner_of_tools_goes_on_without_threads(server):
    """That of the `anthropic` client."""
    tools = [{"name": "switch", "description": "Switches.", "input_schema": SWITCH}]
    ask = {"model": "tiny", "max_tokens": 400, "messages": HELLO, "max_iterations": 2}
    ask |= {"tools": tools, "tool_choice": ONE_TOOL}
    got = run_node("tests/node/runner.mjs", server.url, json.dumps(ask))
    assert got["calls"] == 2 and got["last"]["stop_reason"] == "tool_use"
