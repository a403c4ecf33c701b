"""Thoughts at POST /v1/chat/completions, over a backend that says what a test wants."""

import pytest

from switchyard.app.table_settings import TableModel
from switchyard.engine import Chunk, Started
from tests.app.chat.test_tools import HELLO, URL, prompt_of
from tests.app.conftest import frames
from tests.scripted import ScriptedBackend, finished, says

THOUGHTS = ["<think>", "\nHm", "m.\n", "</think>", "\n\nSo", "."]


def test_thoughts_are_split_off_and_counted(make_client):
    body = make_client(ScriptedBackend(says(*THOUGHTS))).post(URL, json=HELLO).json
    message = body["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hmm.", "So.")
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 4}
    assert body["usage"]["completion_tokens"] == 6


def test_each_token_of_a_piece_of_thoughts_counts(make_client):
    def script(job):
        yield Started(job.identifier)
        yield Chunk(job.identifier, "<think>Hm.", (1, 2, 3))
        yield Chunk(job.identifier, "</think>", (4,))
        yield Chunk(job.identifier, "So.", (5, 6))
        yield finished(job, 6, "stop")

    usage = make_client(ScriptedBackend(script)).post(URL, json=HELLO).json["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 4}


def test_thoughts_are_streamed_apart(make_client):
    client = make_client(ScriptedBackend(says(*THOUGHTS)))
    request = {**HELLO, "stream": True, "stream_options": {"include_usage": True}}
    *bodies, last = frames(client.post(URL, json=request))
    deltas = [body["choices"][0]["delta"] for body in bodies]
    thoughts = [d["reasoning_content"] for d in deltas if "reasoning_content" in d]
    assert thoughts == ["Hm", "m."]
    assert [d["content"] for d in deltas if "content" in d] == ["", "So", "."]
    assert last["usage"]["completion_tokens_details"] == {"reasoning_tokens": 4}


@pytest.mark.parameter("separate_reasoning")
@pytest.mark.parameter("include_reasoning")
def test_thoughts_may_be_left_in_the_text_or_out(make_client):
    client = make_client(ScriptedBackend(says(*THOUGHTS)))
    whole = client.post(URL, json={**HELLO, "separate_reasoning": False}).json
    message = whole["choices"][0]["message"]
    assert message["content"] == "".join(THOUGHTS) and "reasoning_content" not in message
    body = client.post(URL, json={**HELLO, "include_reasoning": False}).json
    message = body["choices"][0]["message"]
    assert message["content"] == "So." and "reasoning_content" not in message
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 4}


def test_thoughts_of_all_choices_count(make_client):
    client = make_client(ScriptedBackend(says(*THOUGHTS)))
    body = client.post(URL, json={**HELLO, "n": 2}).json
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 8}


def test_bare_text_is_all_that_the_model_writes(make_client):
    client = make_client(ScriptedBackend(says(*THOUGHTS)))
    headers = {"Accept": "text/plain"}
    response = client.post(URL, json={**HELLO, "stream": True}, headers=headers)
    assert response.get_data(as_text=True) == "".join(THOUGHTS)


def test_a_table_s_own_tags_are_split_off(make_client, model_path):
    client = make_client(ScriptedBackend(says("[", "Hm", "]", "So")))
    message = client.post(URL, json=HELLO).json["choices"][0]["message"]
    assert message["content"] == "[Hm]So"
    table = TableModel(model=model_path, reasoning_start="[", reasoning_end="]")
    client.models.get().about = table  # as the table of models does when it makes an engine
    message = client.post(URL, json=HELLO).json["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm", "So")


def test_tags_that_are_special_tokens_are_shown_in_the_text_to_split(make_client):
    backend = ScriptedBackend(says("x"))
    client = make_client(backend, reasoning_start="<s>", reasoning_end="</s>")
    assert client.post(URL, json=HELLO).status_code == 200
    special_ids = client.models.get().tokenizer.tag_ids
    assert set(backend.enqueued[0].shown_token_ids) == {special_ids["<s>"], special_ids["</s>"]}


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"reasoning_start": "[", "reasoning_end": "]"}, "[Hm.]So."),
        ({"reasoning_start": ""}, None),
        ({"reasoning_end": ""}, None),
    ],
)
def test_the_tags_are_a_setting(make_client, settings, text):
    script = says(*(text or "".join(THOUGHTS)))
    client = make_client(ScriptedBackend(script), **settings)
    message = client.post(URL, json=HELLO).json["choices"][0]["message"]
    if text:
        assert (message["reasoning_content"], message["content"]) == ("Hm.", "So.")
    else:
        assert message["content"] == "".join(THOUGHTS)
        begun = [*HELLO["messages"], {"role": "assistant", "content": "Hm."}]
        more = {"messages": begun, "continue_final_message": True, "add_generation_prompt": False}
        assert client.post(URL, json=HELLO | more).status_code == 200


@pytest.mark.parameter("enable_thinking")
@pytest.mark.parameter("thinking", "/v1/chat/completions")
@pytest.mark.parameter("thinking.type", "/v1/chat/completions")
@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({"enable_thinking": False}, "enable_thinking"),
        ({"thinking": {"type": "disabled"}}, "thinking"),
        ({"chat_template_kwargs": {"thinking": False}}, "chat_template_kwargs.thinking"),
        (
            {"thinking": {"type": "disabled"}, "chat_template_kwargs": {"thinking": True}},
            "chat_template_kwargs.thinking,thinking",
        ),
    ],
)
def test_whether_to_think_reaches_a_template_that_has_a_word_for_it(
    make_client, with_template, more, name
):
    backend = ScriptedBackend(says("x"))
    path = with_template("{{ 'thinks' if thinking is not defined or thinking else 'not' }}")
    response = (client := make_client(backend, path=path)).post(URL, json={**HELLO, **more})
    assert prompt_of(client, backend) == "not" and "X-Switchyard-Ignored" not in response.headers
    response = make_client(ScriptedBackend(says("x"))).post(URL, json={**HELLO, **more})
    assert response.headers["X-Switchyard-Ignored"] == name


def test_an_effort_without_a_word_in_the_template_is_told(make_client):
    client = make_client(ScriptedBackend(says("x")))
    response = client.post(URL, json={**HELLO, "reasoning_effort": "low"})
    assert response.headers["X-Switchyard-Ignored"] == "reasoning_effort"
    kwargs = {"chat_template_kwargs": {"reasoning_effort": "low"}}
    response = client.post(URL, json={**HELLO, **kwargs})
    assert response.headers["X-Switchyard-Ignored"] == "chat_template_kwargs.reasoning_effort"
