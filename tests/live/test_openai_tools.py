"""Tools by the `openai` client with strict validation of what it gets."""

import json
from typing import Literal

import openai
import pydantic
import pytest

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"city": {"enum": ["Rome", "Oslo"]}},
                "required": ["city"],
                "additionalProperties": False,
            },
            "strict": True,
        },
    }
    for name in ("get_weather", "get_time")
]


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_time"}}]
)
def test_a_tool_is_called_and_its_result_sent_back(client, choice):
    messages = [{"role": "user", "content": "The time in Rome?"}]
    more = {"model": "tiny", "tools": TOOLS, "parallel_tool_calls": False}
    completion = client.chat.completions.create(messages=messages, tool_choice=choice, **more)
    [choice] = completion.choices
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    [call] = choice.message.tool_calls
    assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")
    result = {"role": "tool", "tool_call_id": call.id, "content": "Noon."}
    messages = [*messages, choice.message, result]
    answer = client.chat.completions.create(messages=messages, max_tokens=4, **more)
    assert answer.usage.prompt_tokens > completion.usage.prompt_tokens


def test_streamed_calls_of_tools_make_the_whole(client):
    with client.chat.completions.stream(
        model="tiny",
        messages=[{"role": "user", "content": "The time in Rome?"}],
        tools=TOOLS,
        tool_choice="required",
        parallel_tool_calls=False,
    ) as stream:
        kinds = {event.type for event in stream}
        [choice] = stream.get_final_completion().choices
    assert "tool_calls.function.arguments.delta" in kinds
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls[0].function.parsed_arguments["city"] in ("Rome", "Oslo")


def test_arguments_come_parsed(client):
    class get_weather(pydantic.BaseModel):
        city: Literal["Rome", "Oslo"]

    completion = client.chat.completions.parse(
        model="tiny",
        messages=[{"role": "user", "content": "The weather?"}],
        tools=[openai.pydantic_function_tool(get_weather)],
        tool_choice="required",
        parallel_tool_calls=False,
    )
    [call] = completion.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, get_weather)
