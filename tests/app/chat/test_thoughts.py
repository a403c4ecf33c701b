"""Thoughts at POST /v1/chat/completions, over a backend that says what a test wants."""

import pytest

from switchyard.app.table_settings import TableModel
from switchyard.engine import Chunk, Started
from tests.app.chat.conftest import URL
from tests.app.chat.test_tools import HELLO
from tests.app.conftest import frames
from tests.scripted import ScriptedBackend, finished

THOUGHTS = ["<think>", "\nHm", "m.\n", "</think>", "\n\nSo", "."]


def parts_of(asked):
    """Thoughts, text, and how many tokens the thoughts have."""
    message, usage = asked.message, asked.response.json["usage"]
    count = usage["completion_tokens_details"]["reasoning_tokens"]
    return message.get("reasoning_content", "nowhere"), message["content"], count


@pytest.mark.parameter("separate_reasoning include_reasoning")
@pytest.mark.parametrize(
    ("pieces", "more", "settings", "parts"),
    [
        (THOUGHTS, {}, {}, ("Hmm.", "So.", 4)),
        ("[Hm.]So.", {}, {"reasoning_start": "[", "reasoning_end": "]"}, ("Hm.", "So.", 5)),
        (THOUGHTS, {"separate_reasoning": False}, {}, ("nowhere", "".join(THOUGHTS), 0)),
        (THOUGHTS, {"include_reasoning": False}, {}, ("nowhere", "So.", 4)),
    ],
)
def test_thoughts_are_split_off_and_counted(chat, pieces, more, settings, parts):
    asked = chat(HELLO | more, *pieces, **settings)
    assert parts_of(asked) == parts
    assert asked.response.json["usage"]["completion_tokens"] == len(pieces)


def test_each_token_of_a_piece_of_thoughts_counts(chat):
    def script(job):
        yield Started(job.identifier)
        yield Chunk(job.identifier, "<think>Hm.", (1, 2, 3))
        yield Chunk(job.identifier, "</think>", (4,))
        yield Chunk(job.identifier, "So.", (5, 6))
        yield finished(job, 6, "stop")

    assert parts_of(chat(HELLO, backend=ScriptedBackend(script))) == ("Hm.", "So.", 4)


def test_thoughts_are_streamed_apart(chat):
    request = {**HELLO, "stream": True, "stream_options": {"include_usage": True}}
    *bodies, last = frames(chat(request, *THOUGHTS).response)
    deltas = [body["choices"][0]["delta"] for body in bodies]
    thoughts = [d["reasoning_content"] for d in deltas if "reasoning_content" in d]
    assert thoughts == ["Hm", "m."]
    assert [d["content"] for d in deltas if "content" in d] == ["", "So", "."]
    assert last["usage"]["completion_tokens_details"] == {"reasoning_tokens": 4}


def test_thoughts_of_all_choices_count(chat):
    body = chat({**HELLO, "n": 2}, *THOUGHTS).response.json
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 8}


def test_bare_text_is_all_that_the_model_writes(chat):
    headers = {"Accept": "text/plain"}
    client = chat(HELLO, *THOUGHTS).client
    response = client.post(URL, json={**HELLO, "stream": True}, headers=headers)
    assert response.get_data(as_text=True) == "".join(THOUGHTS)


def test_a_table_s_own_tags_are_split_off(chat, model_path):
    asked = chat(HELLO, "[", "Hm", "]", "So")
    assert asked.message["content"] == "[Hm]So"
    table = TableModel(model=model_path, reasoning_start="[", reasoning_end="]")
    asked.client.models.get().about = table  # as the table of models does when it makes an engine
    assert parts_of(asked.again(HELLO))[:2] == ("Hm", "So")


def test_tags_that_are_special_tokens_are_shown_in_the_text_to_split(chat):
    asked = chat(HELLO, reasoning_start="<s>", reasoning_end="</s>")
    special_ids = asked.client.models.get().tokenizer.tag_ids
    assert set(asked.job.shown_token_ids) == {special_ids["<s>"], special_ids["</s>"]}


@pytest.mark.parametrize("name", ["reasoning_start", "reasoning_end"])
def test_without_one_of_the_tags_there_are_no_thoughts(chat, name):
    asked = chat(HELLO, *THOUGHTS, **{name: ""})
    assert asked.message["content"] == "".join(THOUGHTS)
    begun = [*HELLO["messages"], {"role": "assistant", "content": "Hm."}]
    more = {"messages": begun, "continue_final_message": True, "add_generation_prompt": False}
    assert asked.again(HELLO | more).response.status_code == 200


@pytest.mark.parameter("enable_thinking")
@pytest.mark.parameter("thinking thinking.type", "/v1/chat/completions")
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
def test_whether_to_think_reaches_a_template_that_has_a_word_for_it(chat, more, name):
    template = "{{ 'thinks' if thinking is not defined or thinking else 'not' }}"
    asked = chat({**HELLO, **more}, template=template)
    assert (asked.prompt, asked.ignored) == ("not", None)
    assert chat({**HELLO, **more}).ignored == name


def test_an_effort_without_a_word_in_the_template_is_told(chat):
    asked = chat({**HELLO, "reasoning_effort": "low"})
    assert asked.ignored == "reasoning_effort"
    asked = asked.again({**HELLO, "chat_template_kwargs": {"reasoning_effort": "low"}})
    assert asked.ignored == "chat_template_kwargs.reasoning_effort"
