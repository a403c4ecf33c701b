"""The `openai` client's Responses, with strict validation of what it gets."""

import openai
import pydantic
import pytest

ASK = {"model": "tiny", "input": "Hello", "max_output_tokens": 4}
GREEDY = {**ASK, "max_output_tokens": 400, "temperature": 0}  # ends by itself if it may


class Pair(pydantic.BaseModel, extra="forbid"):
    a: bool
    b: bool


SCHEMA = Pair.model_json_schema()
TOOL = {"type": "function", "name": "switch", "parameters": SCHEMA, "strict": True}
CALL = {**GREEDY, "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}


def test_response(client):
    response = client.responses.create(**ASK, instructions="Be brief.", metadata={"a": "b"})
    assert response.status in ("incomplete", "completed")
    assert response.usage.output_tokens <= 4 and response.metadata == {"a": "b"}


def test_streamed_response(client):
    ask = {**ASK, "temperature": 0, "extra_body": {"ignore_eos": True}}
    whole = client.responses.create(**ask)
    bodies = list(client.responses.create(**ask, stream=True))
    assert [body.sequence_number for body in bodies] == list(range(len(bodies)))
    assert bodies[-1].response.output_text == whole.output_text != ""
    with client.responses.stream(**ask) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
    assert text == whole.output_text


def test_response_that_goes_on_with_its_tools(client):
    first = client.responses.create(**CALL)
    [call] = [item for item in first.output if item.type == "function_call"]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "done"}
    items = [{"role": "user", "content": "Hello"}, *first.output, result]
    response = client.responses.create(**{**ASK, "input": items}, tools=[TOOL])
    assert response.usage.input_tokens > first.usage.input_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_three_turns_by_their_identifiers(client, stream):
    ask = {**ASK, "temperature": 0}
    items, last = [], None
    for text in ("Hello", "And you?", "Bye."):
        items.append({"role": "user", "content": text})
        turn = {**ask, "input": text, "previous_response_id": last}
        response = client.responses.create(**turn, stream=stream)
        if stream:
            *_, end = response
            response = end.response
        sent = client.responses.create(**{**ask, "input": items}, store=False)
        assert response.usage.input_tokens == sent.usage.input_tokens
        assert response.output_text == sent.output_text and response.previous_response_id == last
        assert client.responses.retrieve(response.id).output == response.output
        items += response.output
        last = response.id
    client.responses.delete(last)
    with pytest.raises(openai.NotFoundError, match="Previous response with id"):
        client.responses.create(**ask, previous_response_id=last)


def test_streamed_call_of_a_tool(client):
    with client.responses.stream(**CALL) as stream:
        arguments = "".join(
            e.delta for e in stream if e.type == "response.function_call_arguments.delta"
        )
        final = stream.get_final_response()
    Pair.model_validate_json(arguments)
    assert final.output[-1].arguments == arguments


def test_parsed_response(client):
    response = client.responses.parse(**GREEDY, text_format=Pair)
    assert isinstance(response.output_parsed, Pair)


def test_exceptions_are_of_the_right_class(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.create(**ASK, previous_response_id="resp_1")
    assert caught.value.param == "previous_response_id"
    with pytest.raises(openai.NotFoundError):
        client.responses.create(**{**ASK, "model": "gpt-9"})
