"""What the page can do with a message, its settings, two columns, files and the context."""

import re

import pytest

from tests.page.conftest import SIZES, answer, begin, chat, complete, reload, say, text_of, titles
from tests.scripted import ScriptedBackend, says

pytestmark = pytest.mark.page


@pytest.fixture
def numbered(visit):
    """Visit a page whose answers are `Answer 1.`, `Answer 2.` and so on."""

    def make(**settings):
        count = iter(range(1, 100))
        return visit(ScriptedBackend(lambda job: says(f"Answer {next(count)}.")(job)), **settings)

    return make


def press(page, name, on):
    on.get_by_role("button", name=name, exact=True).click()


def asked_by(page, act):
    """The body of the request for an answer."""
    with page.expect_request("**/v1/chat/completions") as asked:
        act()
    return asked.value.post_data_json


def shown(page):
    return [text_of(article) for article in page.locator("article.message").all()]


@pytest.mark.parametrize("width", SIZES)
def test_answers_are_regenerated_and_their_alternatives_shown(numbered, page):
    numbered()
    chat(page, "Hi!")
    press(page, "Regenerate", answer(page))
    answer(page).get_by_text("Answer 2.").wait_for()
    complete(page).get_by_text("2/2").wait_for()
    page.get_by_role("button", name="Previous alternative").click()
    assert shown(page) == ["Hi!", "Answer 1."]
    say(page, "More")
    page.get_by_text("Answer 3.").first.wait_for()
    complete(page)
    page.get_by_role("button", name="Next alternative").click()
    assert shown(page) == ["Hi!", "Answer 2."]
    reload(page)
    page.get_by_role("button", name="Previous alternative").click()
    assert shown(page) == ["Hi!", "Answer 1.", "More", "Answer 3."]


@pytest.mark.parametrize("width", SIZES)
def test_an_edited_question_is_asked_again_and_an_edited_answer_keeps_what_follows(numbered, page):
    numbered()
    for text in ("One", "Two"):
        chat(page, text)
    page.locator(".note:visible").nth(1).wait_for()
    press(page, "Edit", page.locator("article.assistant").first)
    page.get_by_label("Text of the message").fill("Mine.")
    page.get_by_role("button", name="Save").click()
    assert shown(page) == ["One", "Mine.", "Two", "Answer 2."]
    press(page, "Edit", page.locator("article.user").last)
    page.get_by_label("Text of the message").fill("Three")
    body = asked_by(page, lambda: press(page, "Ask again", page))
    assert [one["content"] for one in body["messages"]] == ["One", "Mine.", "Three"]
    page.get_by_text("Answer 3.").first.wait_for()
    page.get_by_role("button", name="Previous alternative").click()
    assert shown(page) == ["One", "Mine.", "Two", "Answer 2."]


@pytest.mark.parametrize("width", SIZES)
def test_an_answer_is_continued_where_it_ended(numbered, page):
    numbered()
    chat(page, "Hi!")
    body = asked_by(page, lambda: press(page, "Continue", answer(page)))
    assert body["continue_final_message"] is True
    assert body["messages"][-1] == {"role": "assistant", "content": "Answer 1."}
    answer(page).get_by_text("Answer 1.Answer 2.").wait_for()
    assert "2 tokens" in complete(page).text_content()


@pytest.mark.parametrize("width", SIZES)
def test_a_deleted_message_comes_back_and_a_branch_is_a_conversation(numbered, page):
    numbered()
    for text in ("One", "Two"):
        chat(page, text)
    page.locator(".note:visible").nth(1).wait_for()
    press(page, "Delete", page.locator("article.assistant").first)
    assert shown(page) == ["One"]
    page.get_by_role("button", name="Undo").click()
    assert shown(page) == ["One", "Answer 1.", "Two", "Answer 2."]
    press(page, "Branch", page.locator("article.assistant").first)
    assert shown(page) == ["One", "Answer 1."]
    assert titles(page) == ["One (branch)", "One"]


@pytest.mark.parametrize("width", SIZES)
def test_a_message_is_copied(numbered, page):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    numbered()
    press(page, "Copy", chat(page, "Hi!"))
    answer(page).get_by_text("Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == "Answer 1."


@pytest.mark.parametrize("width", SIZES)
def test_calls_of_tools_are_shown_and_their_results_asked_for(visit, page):
    call = '{"name": "look", "arguments": {"at": "<b>x</b>"}}'
    answers = [says("<tool_call>", call, "</tool_call>"), says("It is seen.")]
    visit(ScriptedBackend(lambda job: answers.pop(0)(job)), tool_format="hermes")
    page.get_by_role("button", name="Settings").click()
    tools = '[{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]'
    page.get_by_label("Tools, as a JSON list").fill("[")
    page.get_by_role("button", name="Done").click()
    assert page.locator("#settings").is_visible()  # what can't be sent is said first
    page.get_by_label("Tools, as a JSON list").fill(tools)
    page.get_by_role("button", name="Done").click()
    called = chat(page, "Look!").locator(".call")
    assert called.locator("strong").text_content() == "look"
    assert called.locator("pre").text_content() == '{"at": "<b>x</b>"}'
    page.locator("#ask-label").get_by_text("Result of the tool look").wait_for()
    _, called, result = asked_by(page, lambda: say(page, "a mirror"))["messages"]
    arguments = '{"at": "<b>x</b>"}'
    assert called["tool_calls"][0]["function"] == {"name": "look", "arguments": arguments}
    assert (result["role"], result["content"]) == ("tool", "a mirror")
    answer(page).get_by_text("It is seen.").wait_for()


@pytest.mark.parametrize("width", SIZES)
def test_each_conversation_has_its_settings_and_sends_what_differs(numbered, page):
    numbered(presets={"calm": {"temperature": 0.3}})
    page.get_by_text("0 running").wait_for()
    page.get_by_role("button", name="Settings").click()
    sheet = page.locator("#settings")
    sheet.get_by_label("System message").fill("Be brief.")
    sheet.get_by_label("Seed").fill("7")
    sheet.get_by_label("Stop strings").fill("END\n\\n")
    sheet.get_by_label("Format of the output").select_option("regex")
    sheet.get_by_label("Schema, expression or grammar").fill("[A-Z].*")
    sheet.get_by_text("Temperature", exact=True).click()
    temperature = sheet.get_by_label("temperature", exact=True)
    assert temperature.get_attribute("placeholder") == "1"
    temperature.fill("1.0")  # the server's default
    sheet.get_by_text("Filters and mirostat").click()
    sheet.get_by_label("top_k").fill("20")
    sheet.get_by_text("Length and stop").click()
    sheet.get_by_label("ignore_eos").select_option("false")
    page.get_by_role("button", name="Done").click()
    body = asked_by(page, lambda: say(page, "Hi!"))
    assert body.pop("messages")[0] == {"role": "system", "content": "Be brief."}
    stream = {"stream": True, "stream_options": {"include_usage": True}, "timings": True}
    more = {"seed": 7, "stop": ["END", "\n"], "regex": "[A-Z].*", "top_k": 20}
    assert body == {**stream, **more}
    complete(page)
    reload(page)
    page.get_by_role("button", name="Settings").click()
    assert sheet.get_by_label("top_k").input_value() == "20"
    sheet.get_by_label("top_k").fill("-7")  # out of the range
    page.get_by_role("button", name="Done").click()
    assert sheet.is_visible()
    page.get_by_role("button", name="Reset").click()
    sheet.get_by_label("Preset").select_option("calm")
    page.get_by_role("button", name="Done").click()
    assert asked_by(page, lambda: say(page, "Hi!"))["preset"] == "calm"
    complete(page)
    begin(page)
    assert asked_by(page, lambda: say(page, "Hi!")).keys() == {"messages", *stream}


@pytest.mark.parametrize("width", SIZES)
def test_text_is_raw_and_thoughts_unfold_by_switches(visit, page):
    visit(ScriptedBackend(says("<think>", "Hm.", "</think>", "**bold**")))
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Show thoughts").check()
    page.get_by_label("Show raw text").check()
    page.get_by_role("button", name="Done").click()
    shown = chat(page, "Hi!")
    shown.get_by_text("Hm.").wait_for()
    assert text_of(shown) == "**bold**"


@pytest.mark.parametrize("width", SIZES)
def test_a_question_goes_to_two_columns_with_settings_of_their_own(numbered, page):
    numbered()
    page.get_by_role("button", name="Compare").click()
    page.locator(".pane").nth(1).get_by_role("button", name="Settings").click()
    page.get_by_label("System message").fill("Other.")
    page.get_by_role("button", name="Done").click()
    assert page.locator(".pane header .note").all_text_contents() == ["", "“Other.”"]
    bodies = []
    page.on("request", lambda one: bodies.append(one) if "completions" in one.url else 0)
    say(page, "Which?")
    texts = {text_of(complete(page, pane)) for pane in (0, 1)}
    assert texts == {"Answer 1.", "Answer 2."}
    first = [body.post_data_json["messages"][0] for body in bodies if body.post_data_json]
    assert {"role": "system", "content": "Other."} in first
    assert {"role": "user", "content": "Which?"} in first
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    reload(page)
    assert {text_of(complete(page, pane)) for pane in (0, 1)} == texts
    page.get_by_role("button", name="Close this column").click()
    assert page.locator(".pane").count() == 1


@pytest.mark.parametrize("width", SIZES)
def test_the_context_and_a_file_are_told_in_tokens(numbered, page):
    numbered()
    page.get_by_text("0 running").wait_for()
    file = {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"some notes"}
    page.locator("#file").set_input_files([file, {**file, "name": "x.bin", "buffer": b"\xff\0"}])
    page.get_by_text("x.bin is not a text file.").wait_for()
    page.locator("#files").get_by_text(re.compile(r"notes\.txt, [\d,]+ tokens")).wait_for()
    used = page.locator("#context").get_by_text(re.compile(r"[\d,]+ of [\d,]+ tokens"))
    used.wait_for()
    before = used.text_content()
    page.get_by_role("button", name="Remove notes.txt").click()
    page.locator("#context .used").wait_for(state="detached")
    page.locator("#file").set_input_files(file)
    page.locator("#input").fill("Read this. " * 10)
    used.wait_for()
    page.wait_for_function("(before) => context.textContent !== before", arg=before)
    body = asked_by(page, lambda: page.locator("#send").click())
    assert body["messages"][0]["content"].startswith("notes.txt:\n```\nsome notes\n```\n\nRead")
    complete(page)
    assert page.locator("#files").is_hidden()
    page.locator("article.user summary").get_by_text("notes.txt").wait_for()
    page.locator("#input").fill("too long " * 3000)
    page.get_by_text("Longer than the context").wait_for()
