"""The `anthropic` client with strict validation of what it gets. Each test imports it: it takes
more than a second, which otherwise each worker of pytest would spend.
"""

import pytest

USER = [{"role": "user", "content": "Hello"}]
SWITCH = {
    "type": "object",
    "properties": {"on": {"type": "boolean"}},
    "required": ["on"],
    "additionalProperties": False,
}
ONE_TOOL = {"type": "any", "disable_parallel_tool_use": True}
ASK = {"model": "tiny", "max_tokens": 4, "messages": USER}


@pytest.fixture
def client(server):
    import anthropic

    strict = {"max_retries": 0, "_strict_response_validation": True}
    with anthropic.Anthropic(base_url=server.url, api_key="none", **strict) as client:
        yield client


def num_read(message):
    return message.usage.input_tokens + message.usage.cache_read_input_tokens


def test_models(client):
    [model] = client.models.list()
    assert client.models.retrieve(model.id) == model
    assert model.id == "tiny" and model.max_input_tokens > 0


def test_message_that_goes_on(client):
    first = client.messages.create(**ASK, extra_body={"ignore_eos": True})
    messages = [*USER, {"role": "assistant", "content": first.content}, *USER]
    assert client.messages.create(**{**ASK, "messages": messages}).usage.output_tokens <= 4


def test_streamed_message(client):
    ask = {**ASK, "extra_body": {"temperature": 0, "ignore_eos": True}}
    whole = client.messages.create(**ask)
    types = [event.type for event in client.messages.create(**ask, stream=True)]
    assert types[:2] == ["message_start", "content_block_start"]
    assert types[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    with client.messages.stream(**ask) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert final.content[0].text == whole.content[0].text == text != ""
    assert (whole.role, whole.model) == ("assistant", "tiny")
    assert final.stop_reason == whole.stop_reason == "max_tokens"
    assert final.usage.output_tokens == 4


def test_count_of_tokens(client):
    count = client.messages.count_tokens(model="tiny", messages=USER)
    assert count.input_tokens == num_read(client.messages.create(**ASK))


def test_exceptions_are_of_the_right_class(client):
    import anthropic

    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(**ASK, extra_body={"temperature": 9})
    assert "temperature" in caught.value.body["error"]["message"]
    assert caught.value.request_id == caught.value.body["request_id"]
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**{**ASK, "model": "claude"})
    with pytest.raises(anthropic.BadRequestError):  # before the first event
        client.messages.create(**ASK, extra_body={"temperature": 9}, stream=True)


def test_tools_go_back_and_forth(client):
    tool = {"name": "add", "input_schema": {"type": "object"}}
    call = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "1"}
    turns = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    messages = [*USER, *turns]
    message = client.messages.create(**{**ASK, "messages": messages}, tools=[tool])
    assert message.stop_reason in ("max_tokens", "end_turn")
    more = {"tools": [tool], "thinking": {"type": "adaptive"}}
    count = client.messages.count_tokens(model="tiny", messages=messages, **more)
    assert count.input_tokens == num_read(message)


def test_a_call_that_must_be_made_is_streamed(client):
    tool = {"name": "switch", "input_schema": SWITCH, "strict": True}
    ask = {**ASK, "max_tokens": 400, "tools": [tool], "tool_choice": ONE_TOOL}
    with client.messages.stream(**ask, extra_body={"temperature": 0}) as stream:
        final = stream.get_final_message()
    call = final.content[-1]
    assert (final.stop_reason, call.type, call.name) == ("tool_use", "tool_use", "switch")
    assert isinstance(call.input["on"], bool)


def test_a_stop_sequence_is_told(client):
    ask = {**ASK, "max_tokens": 8, "extra_body": {"temperature": 0, "ignore_eos": True}}
    text = client.messages.create(**ask).content[0].text
    message = client.messages.create(**ask, stop_sequences=[text[3:5]])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", text[3:5])


def test_turns_that_differ_in_their_accounts_share_the_cache(client):
    told = "Answer in one word, and never in two. " * 60
    for accounts in ("0a1b2", "77fe0"):
        billing = f"x-anthropic-billing-header: cc_version=2.1; cch={accounts};"
        system = [{"type": "text", "text": billing}, {"type": "text", "text": told}]
        usage = client.messages.create(**ASK, system=system).usage
    assert usage.cache_read_input_tokens > 256
