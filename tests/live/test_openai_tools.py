"""Tools by the `openai` client with strict validation of what it gets."""

import json

import pytest

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
NAMES = ("get_weather", "get_time")
FUNCTIONS = [{"name": name, "parameters": CITY, "strict": True} for name in NAMES]
TOOLS = [{"type": "function", "function": function} for function in FUNCTIONS]
ASKED = [{"role": "user", "content": "The time in Rome?"}]
MORE = {"model": "tiny", "tools": TOOLS, "parallel_tool_calls": False}


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_time"}}]
)
def test_a_tool_is_called_and_its_result_sent_back(client, choice):
    completion = client.chat.completions.create(messages=ASKED, tool_choice=choice, **MORE)
    [choice] = completion.choices
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    [call] = choice.message.tool_calls
    assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")
    result = {"role": "tool", "tool_call_id": call.id, "content": "Noon."}
    messages = [*ASKED, choice.message, result]
    answer = client.chat.completions.create(messages=messages, max_tokens=4, **MORE)
    assert answer.usage.prompt_tokens > completion.usage.prompt_tokens


def test_streamed_calls_of_tools_make_the_whole(client):
    with client.chat.completions.stream(messages=ASKED, tool_choice="required", **MORE) as stream:
        kinds = {event.type for event in stream}
        [choice] = stream.get_final_completion().choices
    assert "tool_calls.function.arguments.delta" in kinds
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls[0].function.parsed_arguments["city"] in ("Rome", "Oslo")
