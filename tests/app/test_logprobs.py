"""Logprobs, and what is chosen by them, over a scripted backend."""

import math
from types import SimpleNamespace

import pytest

from switchyard import engine
from switchyard.app.formats.logprobs import CompletionLogprobs, TokenNames
from switchyard.engine.messages import Chunk, Finished, PromptLogprobs, Started, TokenLogprob
from tests.app.conftest import frames, named_events
from tests.app.refused import error_of
from tests.scripted import ScriptedBackend

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def tokenizer(model_path):
    return engine.Tokenizer(engine.ModelDir.read(model_path))


@pytest.fixture(scope="module")
def ids(tokenizer):
    """Token ids of a text that are one for each of its bytes."""
    by_byte = {tokenizer.piece(i): i for i in range(4096) if len(tokenizer.piece(i)) == 1}
    return lambda text: [by_byte[bytes([byte])] for byte in text.encode()]


def scored(token_id, logprob, *others):
    return TokenLogprob(token_id, logprob, others)


def saying(*chunks, stop_token=None, prompt=()):
    """A script: `chunks` of (text, logprobs)."""

    def script(job):
        yield Started(job.identifier)
        if job.prompt_logprobs is not None:
            yield PromptLogprobs(job.identifier, tuple(prompt))
        new_tokens = 0
        for text, logprobs in chunks[: job.max_new_tokens]:
            token_ids = tuple(token.token_id for token in logprobs)
            new_tokens += len(token_ids)
            told = tuple(logprobs) if job.num_logprobs is not None else None
            yield Chunk(job.identifier, text, token_ids, told)
        asked = stop_token if job.num_logprobs is not None else None
        end = ("stop", len(job.prompt), new_tokens, 0, None)
        yield Finished(job.identifier, *end, stop_token=asked)

    return ScriptedBackend(script)


def asked(client, url, body):
    """The choice of the whole answer, and the bodies of the stream."""
    [choice] = client.post(url, json=body).json["choices"]
    return choice, frames(client.post(url, json={**body, "stream": True}))


def merged(bodies):
    """The legacy lists of all frames of one choice, joined."""
    found = [b["choices"][0]["logprobs"] for b in bodies if b["choices"][0]["logprobs"]]
    return {name: [x for lists in found for x in lists[name]] for name in found[0]}


@pytest.mark.parameter("logprobs", "/v1/completions")
def test_a_completion_tells_tokens_alternatives_and_offsets(make_client, ids, tokenizer):
    a, b, c = ids("abc")
    end = tokenizer.token_id("<|im_end|>")
    backend = saying(
        ("a", [scored(a, -0.25, (a, -0.25), (b, -2.0))]),
        ("b", [scored(b, -math.inf, (c, -0.5), (end, -math.inf))]),
    )
    client = make_client(backend)
    choice, bodies = asked(client, COMPLETIONS, {"prompt": "x", "logprobs": 2})
    more = {"c": -0.5, "<|im_end|>": -9999.0, "b": -9999.0}
    assert choice["logprobs"] == {
        "tokens": ["a", "b"],
        "token_logprobs": [-0.25, -9999.0],
        "top_logprobs": [{"a": -0.25, "b": -2.0}, more],
        "text_offset": [0, 1],
    }
    assert {(job.num_logprobs, job.prompt_logprobs) for job in backend.enqueued} == {(2, None)}
    assert merged(bodies) == choice["logprobs"]
    assert bodies[-1]["choices"][0]["logprobs"] is None


def test_none_are_told_unless_they_are_asked_for(make_client, ids):
    client = make_client(backend := saying(("a", [scored(*ids("a"), -0.25)])))
    own = [{"a": -0.25}]  # the token's, if no others are asked for
    for url, body, told in (
        (COMPLETIONS, {"prompt": "x"}, None),
        (CHAT, {"messages": HELLO, "logprobs": False}, None),
        (COMPLETIONS, {"prompt": "x", "logprobs": 0}, own),
    ):
        [choice] = client.post(url, json=body).json["choices"]
        assert (choice["logprobs"] and choice["logprobs"]["top_logprobs"]) == told
    assert [job.num_logprobs for job in backend.enqueued] == [None, None, 0]


def test_bytes_that_are_no_character_are_shown_and_none_is_lost(make_client, ids):
    first, second = ids("é")
    a, b = ids("ab")
    logprobs = [scored(a, -1.0), scored(first, -2.0), scored(second, -3.0), scored(b, -4.0)]
    client = make_client(saying(("a", logprobs[:1]), ("", logprobs[1:2]), ("éb", logprobs[2:])))
    choice, bodies = asked(client, COMPLETIONS, {"prompt": "x", "logprobs": 0})
    assert choice["text"] == "aéb"
    assert choice["logprobs"]["tokens"] == ["a", r"bytes:\xc3", r"bytes:\xa9", "b"]
    assert choice["logprobs"]["text_offset"] == [0, 1, 1, 2]
    assert merged(bodies) == choice["logprobs"]

    choice, bodies = asked(client, CHAT, {"messages": HELLO, "logprobs": True})
    content = choice["logprobs"]["content"]
    assert [token["token"] for token in content] == ["a", r"\xc3", r"\xa9", "b"]
    assert bytes(x for token in content for x in token["bytes"]).decode() == "aéb"
    found = [b["choices"][0]["logprobs"] for b in bodies]
    assert [token for one in found if one for token in one["content"]] == content


def test_a_stop_token_ends_the_logprobs_of_a_completion(make_client, ids, tokenizer):
    [a], end = ids("a"), tokenizer.token_id("</s>")
    client = make_client(saying(("a", [scored(a, -0.25)]), stop_token=scored(end, -0.5)))
    body = {"prompt": "x", "logprobs": 0, "stream_options": {"include_usage": True}}
    choice, [*bodies, end] = asked(client, COMPLETIONS, body)
    assert choice["text"] == "a" and end["usage"]["completion_tokens"] == 1
    assert choice["logprobs"] == {
        "tokens": ["a", "</s>"],
        "token_logprobs": [-0.25, -0.5],
        "top_logprobs": [{"a": -0.25}, {"</s>": -0.5}],
        "text_offset": [0, 1],
    }
    assert merged(bodies) == choice["logprobs"]
    [choice] = client.post(CHAT, json={"messages": HELLO, "logprobs": True}).json["choices"]
    assert [token["token"] for token in choice["logprobs"]["content"]] == ["a"]


def test_echo_scores_the_prompt(make_client, ids):
    x, y, a = ids("xya")
    backend = saying(
        ("a", [scored(a, -0.25, (a, -0.25))]), prompt=[None, scored(y, -7.0, (x, -0.125))]
    )
    client = make_client(backend)
    request = {"prompt": [x, y], "echo": True, "logprobs": 1, "max_tokens": 1}
    choice, bodies = asked(client, COMPLETIONS, request)
    assert choice["text"] == "xya"
    assert choice["logprobs"] == {
        "tokens": ["x", "y", "a"],
        "token_logprobs": [None, -7.0, -0.25],
        "top_logprobs": [None, {"x": -0.125, "y": -7.0}, {"a": -0.25}],
        "text_offset": [0, 1, 2],
    }
    assert [b["choices"][0]["text"] for b in bodies] == ["xy", "a", ""]
    assert merged(bodies) == choice["logprobs"]
    assert {job.prompt_logprobs for job in backend.enqueued} == {1}


def names(pieces, by_id=False):
    """The names of tokens with these bytes."""
    tokenizer = SimpleNamespace(piece=pieces.get, decoder=lambda: engine.TextDecoder(pieces))
    return TokenNames(tokenizer, by_id)


def test_offsets_fit_an_echo_that_lacks_the_space_which_its_first_token_has():
    shown = CompletionLogprobs(names({1: b"", 2: b" Hello", 3: b" you\xc3", 4: b"!"}, by_id=True))
    shown.add_prompt([1, 2, 3], "Hello you\ufffd", [None, scored(2, -1.0), scored(3, -1.0)])
    shown.add([scored(4, -1.0), scored(4, -1.0)])
    assert shown.take()["text_offset"] == [0, 0, 5, 10, 11]
    assert shown.take()["tokens"] == []


@pytest.mark.parametrize("chosen", [1, 2, 3])
def test_of_tokens_with_one_text_the_likeliest_is_told(chosen):
    """As of a letter and its byte, in vocabularies that have both."""
    likely = [(1, -0.25), (2, -2.0), (3, -3.0)]
    shown = CompletionLogprobs(names({1: b"a", 2: b"b", 3: b"a"}))
    shown.add([scored(*likely[chosen - 1], *likely)])
    assert shown.take()["top_logprobs"] == [{"a": -0.25, "b": -2.0}]


@pytest.mark.parametrize("logprobs", [None, 1])
def test_a_prompt_alone_is_scored_without_new_tokens(make_client, ids, logprobs):
    x, y = ids("xy")
    client = make_client(saying(("never", []), prompt=[None, scored(y, -7.0, (x, -0.125))]))
    request = {"prompt": [x, y], "echo": True, "logprobs": logprobs, "max_tokens": 0}
    body = client.post(COMPLETIONS, json=request).json
    [choice] = body["choices"]
    assert choice["text"] == "xy"
    assert (choice["logprobs"] is None) == (logprobs is None)
    if logprobs is not None:
        assert choice["logprobs"]["token_logprobs"] == [None, -7.0]
    assert body["usage"]["total_tokens"] == 2
    assert [job.max_new_tokens for job in client.backend.enqueued] == [0]
    bodies = frames(client.post(COMPLETIONS, json={**request, "stream": True}))
    assert [b["choices"][0]["text"] for b in bodies] == ["xy", ""]


def test_each_of_several_prompts_is_echoed_with_its_own_scores(make_client, ids):
    x, y = ids("xy")

    def script(job):
        [token_id] = job.prompt
        yield PromptLogprobs(job.identifier, (None,))
        yield Chunk(job.identifier, "a", (token_id,), (scored(token_id, -float(token_id)),))
        yield Finished(job.identifier, "length", 1, 1, 0)

    client = make_client(ScriptedBackend(script))
    request = {"prompt": [[x], [y]], "n": 2, "echo": True, "logprobs": 0, "max_tokens": 1}
    choices = client.post(COMPLETIONS, json=request).json["choices"]
    assert [c["text"] for c in choices] == ["xa", "xa", "ya", "ya"]
    assert [c["logprobs"]["tokens"] for c in choices] == [["x", "x"]] * 2 + [["y", "y"]] * 2
    bodies = frames(client.post(COMPLETIONS, json={**request, "stream": True}))
    for index in range(4):
        own = [b for b in bodies if b["choices"][0]["index"] == index]
        assert merged(own) == choices[index]["logprobs"]


@pytest.mark.parameter("return_tokens_as_token_ids")
def test_tokens_are_called_by_their_ids_on_request(make_client, ids):
    a, b = ids("ab")
    client = make_client(saying(("a", [scored(a, -0.25, (b, -0.125))])))
    more = {"return_tokens_as_token_ids": True}
    top = {f"token_id:{b}": -0.125, f"token_id:{a}": -0.25}
    for number in (1, 0):
        request = {"prompt": "x", "logprobs": number, **more}
        logprobs = client.post(COMPLETIONS, json=request).json["choices"][0]["logprobs"]
        assert (logprobs["tokens"], logprobs["top_logprobs"]) == ([f"token_id:{a}"], [top])
    request = {"messages": HELLO, "logprobs": True, "top_logprobs": 1, **more}
    [token] = client.post(CHAT, json=request).json["choices"][0]["logprobs"]["content"]
    assert (token["token"], token["bytes"]) == (f"token_id:{a}", [ord("a")])
    assert token["top_logprobs"][0]["token"] == f"token_id:{b}"


@pytest.mark.parameter("logprobs", "top_logprobs", "/v1/chat/completions")
def test_chat_tells_bytes_and_alternatives(make_client, ids, tokenizer):
    [a], end = ids("a"), tokenizer.token_id("<|im_end|>")
    client = make_client(saying(("a", [scored(a, -0.25, (a, -0.25), (end, -math.inf))])))
    request = {"messages": HELLO, "logprobs": True, "top_logprobs": 2}
    choice, bodies = asked(client, CHAT, request)
    token = {"token": "a", "logprob": -0.25, "bytes": [97]}
    stop = {"token": "<|im_end|>", "logprob": -9999.0, "bytes": None}
    expected = {"content": [{**token, "top_logprobs": [token, stop]}], "refusal": None}
    assert choice["logprobs"] == expected
    assert [b["choices"][0]["logprobs"] for b in bodies] == [None, expected, None]
    client.post(CHAT, json={"messages": HELLO, "logprobs": True})
    assert [job.num_logprobs for job in client.backend.enqueued] == [2, 2, 0]


def test_thoughts_and_calls_of_tools_have_logprobs_as_text_has(make_client, ids):
    whole = '<think>So.</think> <tool_call>{"name": "f", "arguments": {}}</tool_call>'
    tokens = [scored(token_id, -0.25) for token_id in ids(whole)]
    backend = saying(*[(text, [token]) for text, token in zip(whole, tokens, strict=True)])
    tool = {"type": "function", "function": {"name": "f"}}
    request = {"messages": HELLO, "logprobs": True, "tools": [tool]}
    choice, bodies = asked(make_client(backend), CHAT, request)
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == "{}"
    assert "".join(token["token"] for token in choice["logprobs"]["content"]) == whole
    found = [b["choices"][0]["logprobs"] for b in bodies if b["choices"][0]["logprobs"]]
    told = [token for one in found for token in one["content"]]
    assert told == choice["logprobs"]["content"]


@pytest.mark.parameter("best_of")
def test_the_best_are_those_with_the_highest_mean_logprob(make_client, ids):
    [a] = ids("a")
    means = {0: [-1.0, -5.0], 1: [-2.0], 2: [-9.0], 3: [-0.5, -0.5, -6.0]}  # the last: a stop token

    def script(job):
        assert job.num_logprobs == 0
        prompt, choice = divmod(int(job.identifier.rpartition("-")[2]), 4)
        for value in means[choice][:2]:
            yield Chunk(job.identifier, f"{prompt}{choice} ", (a,), (scored(a, value),))
        stop_token = scored(a, means[choice][2]) if len(means[choice]) > 2 else None
        yield Finished(job.identifier, "stop", 5, len(means[choice]), 0, stop_token=stop_token)

    client = make_client(ScriptedBackend(script))
    request = {"prompt": ["x", "y"], "n": 2, "best_of": 4, "seed": 3}
    body = client.post(COMPLETIONS, json=request).json
    texts = [(c["index"], c["text"]) for c in body["choices"]]
    assert texts == [(0, "01 "), (1, "03 03 "), (2, "11 "), (3, "13 13 ")]
    assert all(choice["logprobs"] is None for choice in body["choices"])
    assert body["usage"]["prompt_tokens"] == 10
    assert body["usage"]["completion_tokens"] == 2 * (2 + 1 + 1 + 3)
    assert sorted(job.sampling.seed for job in client.backend.enqueued) == [3, 3, 4, 4, 5, 5, 6, 6]


def test_best_of_one_changes_nothing(client):
    request = {"prompt": "x", "best_of": 1, "max_tokens": 1, "stream": True}
    assert len(frames(client.post(COMPLETIONS, json=request))) == 2
    assert [job.num_logprobs for job in client.backend.enqueued] == [None]


@pytest.mark.parameter("include_stop_str_in_output")
@pytest.mark.parametrize("is_streamed", [False, True])
def test_what_ended_a_text_is_told_and_in_it_on_request(make_client, is_streamed):
    def script(job):
        yield Chunk(job.identifier, "x END" if job.include_stop else "x ", (1,))
        yield Finished(job.identifier, "stop", 1, 1, 0, stop_reason="END")

    client = make_client(ScriptedBackend(script))
    for included, expected in [(False, "x "), (True, "x END")]:
        request = {"prompt": "x", "stop": "END", "include_stop_str_in_output": included}
        if is_streamed:
            bodies = frames(client.post(COMPLETIONS, json={**request, "stream": True}))
        else:
            bodies = [client.post(COMPLETIONS, json=request).json]
        choices = [body["choices"][0] for body in bodies]
        assert "".join(choice["text"] for choice in choices) == expected
        assert choices[-1]["stop_reason"] == "END"


@pytest.mark.parameter("include")
@pytest.mark.parameter("top_logprobs", "/v1/responses")
def test_a_response_has_logprobs_of_its_text_alone(make_client, ids):
    a, b, c, d = ids("abcd")
    backend = saying(
        ("<think>", [scored(c, -9.0)]),
        ("Hm.</think>", [scored(d, -9.0)]),
        ("", [scored(a, -1.0, (a, -1.0))]),  # text that is held back
        ("ab", [scored(b, -2.0, (a, -1.5))]),
        ("", [scored(c, -3.0, (c, -3.0))]),  # a token without text
    )
    client = make_client(backend)
    body = {"input": "x", "include": ["message.output_text.logprobs"], "top_logprobs": 1}
    thoughts, message = client.post("/v1/responses", json=body).json["output"]
    [part] = message["content"]
    told = [(one["token"], one["logprob"]) for one in part["logprobs"]]
    assert told == [("a", -1.0), ("b", -2.0), ("c", -3.0)] and "logprobs" not in str(thoughts)
    assert part["logprobs"][1]["top_logprobs"] == [{"token": "a", "logprob": -1.5, "bytes": [97]}]
    bodies = named_events(client.post("/v1/responses", json={**body, "stream": True}))
    deltas = [one for one in bodies if one["type"] == "response.output_text.delta"]
    assert [one for delta in deltas for one in delta["logprobs"]] == part["logprobs"]
    [done] = [one for one in bodies if one["type"] == "response.output_text.done"]
    assert done["logprobs"] == part["logprobs"]
    assert bodies[-1]["response"]["output"][1]["content"] == message["content"]
    assert bodies[-1]["response"]["top_logprobs"] == 1
    assert [job.num_logprobs for job in backend.enqueued] == [1, 1]


def test_a_number_of_logprobs_that_are_not_asked_for_is_told(make_client):
    client = make_client(saying(("a", [])))
    response = client.post("/v1/responses", json={"input": "x", "top_logprobs": 2})
    assert response.status_code == 200
    assert response.headers["X-Switchyard-Ignored"] == "top_logprobs"


@pytest.mark.parameter("prompt_logprobs", "/v1/completions", "/v1/chat/completions")
def test_a_prompt_s_tokens_are_told_by_vllms_names(make_client, ids):
    x, y, a = ids("xya")
    prompt = [None, scored(y, -7.0, (x, -0.125), (a, -2.0)), scored(a, -2.0, (x, -1.0), (a, -2.0))]
    backend = saying(("a", [scored(a, -0.25)]), prompt=prompt)
    client = make_client(backend)

    def told(*tokens):
        names = ("decoded_token", "logprob", "rank")
        return {str(i): dict(zip(names, rest, strict=True)) for i, *rest in tokens}

    most, second, own = (x, "x", -0.125, 1), (a, "a", -2.0, 2), (y, "y", -7.0, None)
    expected = [None, told(own, most, second), told(second, (x, "x", -1.0, 1))]
    request = {"prompt": [x, y, a], "n": 2, "prompt_logprobs": 2, "max_tokens": 1}
    choices = client.post(COMPLETIONS, json=request).json["choices"]
    assert [choice["prompt_logprobs"] for choice in choices] == [expected] * 2
    assert [choice["logprobs"] for choice in choices] == [None] * 2
    body = client.post(CHAT, json={"messages": HELLO, "prompt_logprobs": 2}).json
    assert body["prompt_logprobs"] == expected and body["choices"][0]["logprobs"] is None
    assert {(job.prompt_logprobs, job.num_logprobs) for job in backend.enqueued} == {(2, None)}
    assert "prompt_logprobs" not in client.post(CHAT, json={"messages": HELLO}).text


def test_an_echo_and_prompt_logprobs_each_have_their_own_number(make_client, ids):
    x, y, a = ids("xya")
    prompt = [None, scored(y, -7.0, (x, -0.125), (a, -2.0))]
    client = make_client(saying(("a", [scored(a, -0.25, (a, -0.25))]), prompt=prompt))
    for echoed, told in ((1, 2), (2, 1), (0, 0)):
        request = {"prompt": [x, y], "echo": True, "logprobs": echoed, "prompt_logprobs": told}
        [choice] = client.post(COMPLETIONS, json={**request, "max_tokens": 1}).json["choices"]
        assert len(choice["logprobs"]["top_logprobs"][1]) == echoed + 1
        assert len(choice["prompt_logprobs"][1]) == told + 1
    assert [job.prompt_logprobs for job in client.backend.enqueued] == [2, 2, 0]


@pytest.mark.parametrize("more", [{"stream": True}, {"prompt_logprobs": 21}])
def test_prompt_logprobs_that_cannot_be_told_are_refused(client, more):
    for url, body in ((COMPLETIONS, {"prompt": "x"}), (CHAT, {"messages": HELLO})):
        error = error_of(client.post(url, json={**body, "prompt_logprobs": 1, **more}))
        assert error["param"] == "prompt_logprobs"
