"""Prompts: what transformers makes of a chat."""

import jinja2
import pytest
import transformers

from tests.tokenizers.chats import PLAIN, TOOLS, USER, WITH_TOOLS, as_sent
from tests.tokenizers.families import WRITTEN


@pytest.fixture(scope="module")
def theirs(asked):
    if asked.family in WRITTEN:
        pytest.skip("its template is written for these tests")
    return transformers.PreTrainedTokenizerFast.from_pretrained(asked.path)


def takes_tools(theirs) -> bool:
    return "tools" in theirs.chat_template


def rendered(theirs, messages, tools, **variables):
    """transformers' text, or None if the template refuses the chat."""
    try:
        return theirs.apply_chat_template(messages, tools, tokenize=False, **variables)
    except (jinja2.TemplateError, TypeError):
        return None


def assert_equal(asked, theirs, messages, tools, variables):
    """Text and tokens. A call without text has an empty one where the template takes no None."""
    body = {"messages": [as_sent(m) for m in messages], **variables}
    if tools:
        body["tools"] = tools
    expected = rendered(theirs, messages, tools, **variables)
    if expected is None:
        messages = [{**m, "content": m["content"] or ""} for m in messages]
        expected = rendered(theirs, messages, tools, **variables)
    if expected is None:  # a chat that the template refuses: arranged otherwise, with all in it
        prompt = asked.post("/apply-template", body)["prompt"]
        for call in (call for m in messages for call in m.get("tool_calls", ())):
            assert call["function"]["name"] in prompt
        return
    assert asked.post("/apply-template", body)["prompt"] == expected
    ids = theirs(expected, add_special_tokens=False)["input_ids"]
    assert asked.post("/tokenize", body)["tokens"] == ids


@pytest.mark.parametrize("name", PLAIN)
def test_a_chat_is_what_transformers_makes_of_it(asked, theirs, name):
    for prompts in (True, False):
        assert_equal(asked, theirs, PLAIN[name], None, {"add_generation_prompt": prompts})


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_a_chat_with_tools_is_what_transformers_makes_of_it(asked, theirs, name):
    if not takes_tools(theirs):
        pytest.skip("its template takes no tools")
    assert_equal(asked, theirs, WITH_TOOLS[name], TOOLS, {"add_generation_prompt": True})


def test_a_prompt_begins_with_one_bos_at_most(asked):
    tokenizer = asked.engine.tokenizer
    for prompt in ({"prompt": "Hi"}, {"messages": [USER]}):
        token_ids = asked.post("/tokenize", prompt)["tokens"]
        texts = [tokenizer.token(i) for i in token_ids]
        bos = asked.engine.model_dir.special_token("bos_token")
        assert texts.count(bos) <= 1
        assert bos not in texts[1:]
