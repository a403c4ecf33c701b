"""The `openai` client with strict validation of what it gets, over every feature it has."""

from types import SimpleNamespace
from typing import Literal

import openai
import pytest
from openai.types import Completion, CompletionChoice
from openai.types.chat import ChatCompletion
from openai.types.completion_choice import Logprobs

from tests.faults.conftest import SCRIPTED

HELLO = [{"role": "user", "content": "Hello"}]


class NullableLogprobs(Logprobs):
    """The first token of an echo has none, which the client's own type forgets."""

    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None


class NullableChoice(CompletionChoice):
    finish_reason: Literal["stop", "length"] | None
    logprobs: NullableLogprobs | None = None
    stop_reason: str | int | None = None


class NullableCompletion(Completion):
    """What the API sends: in a stream, no choice but the last has a finish_reason."""

    choices: list[NullableChoice]


@pytest.fixture
def lenient(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def complete(request, client, lenient):
    """Choices and usage of a completion, however it comes."""

    def whole(**parameters):
        nullable = parameters.get("echo") and parameters.get("logprobs") is not None
        body = (lenient if nullable else client).completions.create(model="tiny", **parameters)
        NullableCompletion.model_validate(body.to_dict())
        return body

    def streamed(**parameters):
        stream = lenient.completions.create(
            model="tiny", stream=True, stream_options={"include_usage": True}, **parameters
        )
        *chunks, last = [NullableCompletion.model_validate(chunk.to_dict()) for chunk in stream]
        assert last.choices == [] and all(chunk.usage is None for chunk in chunks)
        choices = {}
        for [choice] in (chunk.choices for chunk in chunks):
            merge(choices.setdefault(choice.index, empty_completion(choice.index)), choice)
        return SimpleNamespace(choices=[choices[i] for i in sorted(choices)], usage=last.usage)

    return streamed if request.param else whole


def empty_completion(index):
    return NullableChoice(index=index, text="", finish_reason=None)


def merge(whole, choice):
    assert whole.finish_reason is None  # the last has come only once
    whole.text += choice.text
    whole.finish_reason, whole.stop_reason = choice.finish_reason, choice.stop_reason
    if choice.logprobs is not None:
        whole.logprobs = whole.logprobs or NullableLogprobs(
            tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[]
        )
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            getattr(whole.logprobs, name).extend(getattr(choice.logprobs, name))


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def chat(request, client):
    """A chat completion, however it comes: the client itself puts a stream together."""

    def whole(**parameters):
        return client.chat.completions.create(model="tiny", **parameters)

    def streamed(**parameters):
        with client.chat.completions.stream(
            model="tiny", stream_options={"include_usage": True}, **parameters
        ) as stream:
            for event in stream:
                assert event.type != "error"
            # Not get_final_completion, which refuses what a limit has ended.
            return ChatCompletion.model_validate(stream.current_completion_snapshot.to_dict())

    return streamed if request.param else whole


def texts(answer):
    return [choice.text for choice in answer.choices]


def contents(answer):
    return [choice.message.content for choice in answer.choices]


def test_models(client):
    [model] = client.models.list().data
    assert client.models.retrieve(model.id) == model


@pytest.mark.parametrize("prompt", ["Hello", ["Hello"], [5, 6, 7], [[5, 6, 7]]], ids=str)
def test_a_prompt_is_text_or_token_ids(complete, prompt):
    answer = complete(prompt=prompt, max_tokens=4)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens >= 0
    assert answer.choices[0].finish_reason in ("length", "stop")


def test_choices_of_several_prompts_come_in_order(complete):
    more = {"max_tokens": 4, "echo": True, "extra_body": {"ignore_eos": True}}
    answer = complete(prompt=[[5, 6], [7, 8, 9]], n=2, **more)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 16)
    [first], [second] = (texts(complete(prompt=p, **more)) for p in ([5, 6], [7, 8, 9]))
    assert {text[:2] for text in texts(answer)[:2]} == {first[:2]}
    assert {text[:2] for text in texts(answer)[2:]} == {second[:2]}


def test_the_same_seed_gives_the_same_text(complete):
    same = {"prompt": "def", "max_tokens": 20, "temperature": 1.0, "n": 2}
    first, again, other = (texts(complete(**same, seed=seed)) for seed in (5, 5, 6))
    assert first == again
    assert len({*first, other[1]}) == 3  # choice k of n has seed + k
    assert other[0] == first[1]


def test_a_text_ends_before_a_stop_string_or_with_it(complete):
    same = {"prompt": "def", "max_tokens": 30, "temperature": 0}
    [text] = texts(complete(**same))
    stop = text[10:12]
    end = text.index(stop)
    answer = complete(**same, stop=[stop])
    assert (texts(answer), answer.choices[0].finish_reason) == ([text[:end]], "stop")
    assert answer.choices[0].stop_reason == stop
    answer = complete(**same, stop=stop, extra_body={"include_stop_str_in_output": True})
    assert texts(answer) == [text[: end + len(stop)]]


def test_logprobs_of_a_completion(complete):
    answer = complete(prompt="def", max_tokens=6, temperature=0, logprobs=3)
    [choice] = answer.choices
    shown = choice.logprobs
    assert len(shown.tokens) - answer.usage.completion_tokens == (choice.finish_reason == "stop")
    told = zip(shown.tokens, shown.token_logprobs, shown.top_logprobs, strict=True)
    for i, (token, logprob, top) in enumerate(told):
        assert max(top.values()) == top[token] == logprob <= 0  # greedy
        assert 1 <= len(top) <= 3  # fewer if several have the same text
        if i + 1 < len(shown.tokens) and not token.startswith("bytes:"):
            assert choice.text[shown.text_offset[i] : shown.text_offset[i + 1]] == token


def test_a_prompt_is_scored(complete):
    prompt = "def main(argument):\n    return é😀"
    whole = complete(prompt=prompt, max_tokens=2, temperature=0, echo=True, logprobs=1)
    only = complete(prompt=prompt, max_tokens=0, echo=True, logprobs=1)
    assert texts(only) == [prompt] and texts(whole)[0].startswith(prompt)
    assert only.usage.completion_tokens == 0 and only.choices[0].finish_reason == "length"
    shown, longer = only.choices[0].logprobs, whole.choices[0].logprobs
    assert len(shown.tokens) == only.usage.prompt_tokens
    assert shown.token_logprobs[0] is None and None not in shown.token_logprobs[1:]
    same = longer.token_logprobs[1 : len(shown.tokens)]
    assert shown.token_logprobs[1:] == pytest.approx(same, abs=1e-3)
    assert len(longer.tokens) >= len(shown.tokens) + 1


def test_biases_force_tokens_and_forbid_them(complete):
    same = {"prompt": "def", "max_tokens": 4, "temperature": 0, "logprobs": 0}
    more = {"ignore_eos": True, "return_tokens_as_token_ids": True}
    [choice] = complete(**same, extra_body=more).choices
    first = choice.logprobs.tokens[0].removeprefix("token_id:")
    [other] = complete(**same, extra_body=more, logit_bias={first: -100}).choices
    assert f"token_id:{first}" not in other.logprobs.tokens
    [forced] = complete(**same, extra_body=more, logit_bias={"400": 100}).choices
    assert forced.logprobs.tokens == ["token_id:400"] * 4
    assert max(forced.logprobs.token_logprobs) < -1  # what the model says, not what was done


def test_logprobs_of_a_chat(chat):
    same = {"messages": HELLO, "max_completion_tokens": 8, "n": 2, "temperature": 1.0, "seed": 2}
    answer = chat(**same, logprobs=True, top_logprobs=4)
    tokens = [choice.logprobs.content for choice in answer.choices]
    assert sum(map(len, tokens)) == answer.usage.completion_tokens
    for choice, shown in zip(answer.choices, tokens, strict=True):
        data = b"".join(bytes(token.bytes or ()) for token in shown)
        assert data.decode("utf-8", "replace") == choice.message.content
        assert all(len(token.top_logprobs) == 4 for token in shown)
        assert all(token.logprob <= token.top_logprobs[0].logprob <= 0 for token in shown)
    assert contents(chat(**same)) == contents(answer)
    assert all(choice.logprobs is None for choice in chat(**same).choices)
    own = chat(**same, logprobs=True).choices[0].logprobs.content
    first = [token.logprob for token in tokens[0]]
    assert [token.logprob for token in own] == pytest.approx(first, abs=1e-3)
    assert own[0].top_logprobs == []


def test_messages_may_have_parts_and_names(chat):
    parts = [{"type": "text", "text": text} for text in ("He", "y", "Be brief.")]
    messages = [
        {"role": "system", "content": parts[2:], "name": "rules"},
        {"role": "user", "content": parts[:2]},
        {"role": "assistant", "content": "Yes?"},
        *HELLO,
    ]
    answer = chat(messages=messages, max_tokens=4)
    assert answer.choices[0].message.role == "assistant"
    assert answer.usage.total_tokens > answer.usage.prompt_tokens > 20


def test_thoughts_come_apart(client):
    request = {
        "model": "tiny",
        "messages": [*HELLO, {"role": "assistant", "content": "<think>"}],
        "max_tokens": 6,
        "seed": 1,
        "extra_body": {"continue_final_message": True},
    }
    completion = client.chat.completions.create(**request)
    message = completion.choices[0].message
    assert message.content == "" and message.reasoning_content
    assert completion.usage.completion_tokens_details.reasoning_tokens > 0
    chunks = client.chat.completions.create(**request, stream=True)
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


def test_what_is_not_offered_is_said_and_not_tried_again(lenient):
    with pytest.raises(openai.BadRequestError, match="suffix"):
        lenient.completions.create(model="tiny", prompt="x", suffix="y")
    with pytest.raises(openai.InternalServerError, match="embeddings") as caught:
        lenient.with_options(max_retries=2).embeddings.create(model="tiny", input="x")
    assert caught.value.status_code == 501
    assert caught.value.request.headers["x-stainless-retry-count"] == "0"


def test_a_full_server_is_a_rate_limit_error_of_both_clients(start):
    import anthropic  # not for tests without it

    server = start(SCRIPTED, max_batch_size=1, max_pending=0).wait_until_ready()
    ask = {"model": "tiny", "messages": HELLO, "max_tokens": 4}
    server.begin(max_tokens=1900)
    same = {"api_key": "none", "max_retries": 0}
    with openai.OpenAI(base_url=f"{server.url}/v1", **same) as client:
        with pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(**ask)
        assert caught.value.code == "queue_full"
    other = anthropic.Anthropic(base_url=server.url, **same)
    with other as client, pytest.raises(anthropic.RateLimitError):
        client.messages.create(**ask)
