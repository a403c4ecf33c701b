"""The `openai` client with strict validation of what it gets."""

import json

import openai
import pytest

from tests.live.conftest import free_port


@pytest.fixture
def client(server):
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


def test_models(client):
    [model] = client.models.list().data
    assert client.models.retrieve(model.id) == model


def test_completion(client):
    completion = client.completions.create(model="tiny", prompt="Hello", max_tokens=4, n=2)
    assert len(completion.choices) == 2
    assert completion.usage.completion_tokens <= 8
    assert completion.usage.prompt_tokens_details.cached_tokens >= 0


def test_streamed_completion(server):
    # Not strictly validated: the client's type demands a finish_reason in every chunk, where the
    # API itself sends null until the last.
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        stream = client.completions.create(model="tiny", prompt="Hello", max_tokens=4, stream=True)
        *chunks, last = list(stream)
    assert all(chunk.choices[0].finish_reason is None for chunk in chunks)
    assert last.choices[0].finish_reason in ("length", "stop")


def test_chat(client):
    completion = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "Hello"}], max_completion_tokens=4
    )
    assert completion.choices[0].message.role == "assistant"
    assert completion.usage.total_tokens > completion.usage.prompt_tokens


def test_streamed_chat_with_usage(client):
    stream = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "Hello"}],
        max_completion_tokens=4,
        stream=True,
        stream_options={"include_usage": True},
    )
    *chunks, last = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason in ("length", "stop")
    assert last.choices == [] and last.usage.completion_tokens >= 1


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


def test_thoughts_come_apart(client):
    request = {
        "model": "tiny",
        "messages": [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "<think>"},
        ],
        "max_tokens": 6,
        "extra_body": {"continue_final_message": True},
    }
    completion = client.chat.completions.create(**request, seed=1)
    message = completion.choices[0].message
    assert message.content == "" and message.reasoning_content
    assert completion.usage.completion_tokens_details.reasoning_tokens > 0
    chunks = client.chat.completions.create(**request, seed=1, stream=True)
    deltas = [chunk.choices[0].delta for chunk in chunks]
    thoughts = "".join(getattr(delta, "reasoning_content", "") for delta in deltas)
    assert thoughts == message.reasoning_content


def test_exceptions_are_of_the_right_class(client):
    ask = client.completions.create
    with pytest.raises(openai.BadRequestError) as caught:
        ask(model="tiny", prompt="x", temperature=9)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as caught:
        ask(model="gpt-9", prompt="x")
    assert caught.value.code == "model_not_found"


def test_a_full_server_is_a_rate_limit_error(start):
    server = start(max_batch_size=1, max_pending=0).wait_until_ready()
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        long = {"model": "tiny", "prompt": "x", "max_tokens": 1900, "stream": True}
        with client.completions.create(**long, extra_body={"ignore_eos": True}) as stream:
            next(iter(stream))
            with pytest.raises(openai.RateLimitError) as caught:
                client.completions.create(model="tiny", prompt="x")
            assert caught.value.code == "queue_full"


def test_no_server_is_a_connection_error():
    with (
        openai.OpenAI(
            base_url=f"http://127.0.0.1:{free_port()}/v1", api_key="none", max_retries=0
        ) as client,
        pytest.raises(openai.APIConnectionError),
    ):
        client.models.list()
