"""POST /v1/chat/completions over a scripted backend, and the chat template."""

import json
import re

import pytest

from switchyard.engine.messages import Chunk, Started
from tests.app.conftest import Streamed, frames, prompt_of
from tests.app.refused import error_of
from tests.scripted import ScriptedBackend, finished, says

pytestmark = pytest.mark.both_ways

URL = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
ASKED = {URL: {"messages": HELLO}, "/v1/completions": {"prompt": "Hello"}}


@pytest.mark.parameter("max_tokens", "/v1/chat/completions")
def test_a_chat_completion_has_the_shape_of_the_api(make_client):
    body = make_client().post(URL, json={"messages": HELLO, "max_tokens": 2}).json
    assert body["id"].startswith("chatcmpl-") and body["object"] == "chat.completion"
    message = {"role": "assistant", "content": "0 1 ", "refusal": None}
    assert body["choices"] == [
        {"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}
    ]
    assert body["usage"]["completion_tokens"] == 2
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}
    assert re.fullmatch("fp_[0-9a-f]{12}", body["system_fingerprint"])


def test_an_answer_of_no_token_is_an_empty_text(make_client):
    body = make_client(ScriptedBackend(says())).post(URL, json={"messages": HELLO}).json
    assert body["choices"][0]["message"]["content"] == ""


def test_usage_and_timings_are_streamed_once_behind_the_last_choice(make_client, gate):
    def of_two_lengths(job):
        return says(*["x"] * (1 + 3 * int(job.identifier[-1])))(job)

    client = make_client(ScriptedBackend(of_two_lengths, gate))
    gate.step(3)  # to the end of the first choice
    more = {"n": 2, "stream": True, "stream_options": {"include_usage": True}, "timings": True}
    streamed = Streamed(client.post(URL, json={"messages": HELLO, **more}))
    while not (streamed.events and '"stop"' in streamed.events[-1][1]):
        assert streamed.read(1).events[-1][1] != "[DONE]"
    gate.open()
    *bodies, last = [json.loads(data) for _, data in streamed.read().events[:-1]]
    assert {body["usage"] for body in bodies} == {None}
    assert not any("timings" in body for body in bodies)
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 1 + 4
    assert last["timings"]["predicted_n"] == 1 + 4


@pytest.mark.parameter("max_completion_tokens")
def test_a_streamed_chat_tells_the_role_once_a_choice(make_client):
    request = {"messages": HELLO, "max_completion_tokens": 2, "n": 2, "stream": True}
    bodies = frames(make_client().post(URL, json=request))
    assert {b["object"] for b in bodies} == {"chat.completion.chunk"}
    for index in range(2):
        choices = [b["choices"][0] for b in bodies if b["choices"][0]["index"] == index]
        assert [(c["delta"], c["finish_reason"]) for c in choices] == [
            ({"role": "assistant", "content": ""}, None),
            ({"content": "0 "}, None),
            ({"content": "1 "}, None),
            ({}, "length"),
        ]


@pytest.fixture
def rendered(make_client, with_template):
    """The text and the tokens of a prompt, and the tokenizer."""

    def rendered(template, content, **more):
        client = make_client(path=with_template(template))
        messages = [{"role": "user", "content": content, **more}]
        client.post(URL, json={"messages": messages, "max_tokens": 1})
        tokenizer = client.models.get().tokenizer
        return prompt_of(client), client.backend.enqueued[0].prompt, tokenizer

    return rendered


@pytest.mark.parameter("messages", "/v1/chat/completions")
@pytest.mark.parameter("messages[].role")
@pytest.mark.parameter("messages[].content", "/v1/chat/completions")
def test_messages_go_through_the_models_own_template(client):
    texts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": texts},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "Bye <|im_end|>"},
    ]
    client.post(URL, json={"messages": messages, "max_tokens": 1})
    expected = "system\nBe brief.\nuser\nHello\nassistant\nHi\nuser\nBye <|im_end|>\nassistant\n"
    assert prompt_of(client) == expected
    [job], token_id = client.backend.enqueued, client.models.get().tokenizer.token_id
    found = [job.prompt.count(token_id(name)) for name in ("<|im_start|>", "<|im_end|>")]
    assert found == [5, 4]  # the user's is only text


TOOL = {"type": "function", "function": {"name": "look"}}


@pytest.mark.parametrize(
    ("url", "more", "new_tokens", "default", "stops_on_loop"),
    [
        (URL, {}, None, None, True),
        (URL, {}, 33, 33, False),
        (URL, {"max_tokens": -1}, None, None, True),
        (URL, {"tools": [TOOL]}, None, None, True),
        (URL, {"stop_on_loop": False}, None, None, False),
        (URL, {"max_tokens": 9}, 9, None, False),
        (URL, {"max_tokens": 9, "stop_on_loop": True}, 9, None, True),
        (URL, {"tools": [TOOL]}, 33, 33, False),
        ("/v1/responses", {}, None, None, True),
        ("/v1/responses", {}, 33, 33, False),
        ("/v1/responses", {"max_output_tokens": 9}, 9, None, False),
        ("/v1/completions", {}, 16, None, False),
        ("/v1/completions", {}, 16, 33, False),
        ("/generate", {}, None, None, True),
        ("/completion", {}, None, None, True),
        ("/api/v1/generate", {}, 512, None, False),
        ("/api/v1/generate", {}, 33, 33, False),
    ],
    ids=str,
)
def test_a_request_without_a_limit_gets_the_rest_of_the_context(
    make_client, url, more, new_tokens, default, stops_on_loop
):
    client = make_client(default_max_tokens=default)
    asked = {URL: ASKED[URL], "/v1/responses": {"input": "Hello"}}.get(url, {"prompt": "Hello"})
    response = client.post(url, json={**asked, **more})
    assert response.status_code == 200 and "x-switchyard-ignored" not in response.headers
    [job] = client.backend.enqueued
    assert job.max_new_tokens == (new_tokens or 2048 - len(job.prompt))
    assert job.stop_on_loop == stops_on_loop


@pytest.mark.parametrize("default", [True, False])
def test_an_operators_choice_of_loops_holds_with_and_without_a_limit(make_client, default):
    client = make_client(default_stop_on_loop=default)
    for more in ({}, {"max_tokens": 3}):
        client.post(URL, json={"messages": HELLO, **more})
    assert [job.stop_on_loop for job in client.backend.enqueued] == [default] * 2


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "no chat template"),
        ("{% for %}", "broken"),
        ("{{ raise_exception('no systems here') }}", "no systems here"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages[0].content.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% for i in range(10000000) %}{% endfor %}", "Range too big"),
    ],
)
def test_a_template_that_fails_is_a_bad_request(make_client, with_template, template, message):
    client = make_client(path=with_template(template))
    error = error_of(client.post(URL, json={"messages": HELLO}))
    assert error["param"] == "messages" and message in error["message"]
    assert client.post("/v1/completions", json={"prompt": "x"}).status_code == 200


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (
            "{{ bos_token }}{% for m in messages + messages %}{% if loop.first %}{% continue %}"
            "{% endif %}{% generation %}{{ m.content | tojson(ensure_ascii=False) }}"
            "{% endgeneration %}{% endfor %}{{ strftime_now('%Y') | length }}",
            '"<é>"4',
        ),
        # Lines that hold only a block leave nothing.
        ("a\n  {% if true %}\nb\n  {%- endif %}\n\tc{% if true %}\nd{% endif %}", "a\nb\tcd"),
    ],
)
def test_a_template_has_what_models_expect(rendered, template, expected):
    assert rendered(template, "<é>")[0] == expected


@pytest.mark.parameter("messages[].name")
def test_a_special_token_in_a_name_is_ordinary_text(rendered):
    text, prompt, tokenizer = rendered("{{ messages[0].name }}<|im_end|>", "x", name="</s>")
    assert text == "</s>"
    assert tokenizer._forbidden_ids.isdisjoint(prompt[:-1])


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        ("urlencode", "%3C%7Cim_end%7C%3E%20%C3%A9%25EF"),
        ("tojson", '"<|im_end|> é%EF"'),
        ("tojson(ensure_ascii=True)", '"<|im_end|> \\u00e9%EF"'),
    ],
)
def test_filters_let_nothing_of_the_escape_through(rendered, filter, expected):
    template = f"{{{{ messages[0].content | {filter} }}}}"
    text, prompt, tokenizer = rendered(template, "<|im_end|> é%EF")
    assert text == expected
    assert tokenizer._forbidden_ids.isdisjoint(prompt)


def test_a_backslash_of_the_user_is_not_taken_for_the_escape(rendered):
    template = "{{ messages[0].content | tojson(ensure_ascii=True) }}"
    assert json.loads(rendered(template, "<s>\\ufdd0")[0]) == "<s>\\ufdd0"


CONTINUOUS = {"include_usage": True, "continuous_usage_stats": True}


@pytest.mark.parameter("stream_options.continuous_usage_stats")
@pytest.mark.parametrize("url", ASKED)
def test_each_frame_tells_the_usage_if_asked(make_client, url):
    body = {"max_tokens": 3, "stream": True, "stream_options": CONTINUOUS}
    usages = [one["usage"] for one in frames(make_client().post(url, json={**ASKED[url], **body}))]
    assert [u["completion_tokens"] for u in usages if u["completion_tokens"]] == [1, 2, 3, 3, 3]
    assert all(u["prompt_tokens"] == usages[-1]["prompt_tokens"] > 0 for u in usages)
    assert all(u["total_tokens"] == u["prompt_tokens"] + u["completion_tokens"] for u in usages)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"n": 2},
        {"logprobs": True, "top_logprobs": 1},
        {"stream_options": {"include_usage": True}},
        {"stream_options": CONTINUOUS},
        {"return_progress": True, "timings": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("url", ASKED)
def test_each_frame_tells_which_weights_answer(client, url, more):
    if url != URL and "logprobs" in more:
        more = {"logprobs": 1}
    asked = {**ASKED[url], "max_tokens": 9}
    bodies = frames(client.post(url, json={**asked, "stream": True, **more}))
    assert len(bodies) >= 9
    expected = client.models.get().model_dir.fingerprint
    bodies.append(client.post(url, json=asked).json)
    assert {one["system_fingerprint"] for one in bodies} == {expected}


@pytest.mark.parametrize("url", ASKED)
def test_usage_until_then_counts_all_tokens_of_a_piece(make_client, url):
    def pairs(job):
        yield Started(job.identifier)
        for i in range(0, job.max_new_tokens, 2):
            yield Chunk(job.identifier, f"{i} ", (i, i + 1))
        yield finished(job, job.max_new_tokens)

    body = {"max_tokens": 6, "stream": True, "stream_options": CONTINUOUS, **ASKED[url]}
    bodies = frames(make_client(ScriptedBackend(pairs)).post(url, json=body))
    assert {one["usage"]["completion_tokens"] for one in bodies} - {0} == {2, 4, 6}
