"""The page's list of conversations: what the browser keeps, finds, deletes, exports and imports."""

import json
import re

import pytest

from tests.conftest import wait_for
from tests.page.conftest import (
    SIZES,
    begin,
    chat,
    close_list,
    open_list,
    reload,
    say,
    text_of,
    titles,
)
from tests.scripted import ScriptedBackend, says

pytestmark = pytest.mark.page
NO_DATABASE = "Object.defineProperty(window, 'indexedDB', {value: undefined})"
NO_CHANNEL = "Object.defineProperty(window, 'BroadcastChannel', {value: undefined})"
FULL = """IDBObjectStore.prototype.put = function () {
  throw new DOMException("The disk is full.", "QuotaExceededError");
}"""


@pytest.fixture
def talk(visit, page):
    """Visit a page whose answers are always the same, and have these conversations."""

    def make(*questions):
        visit(ScriptedBackend(says("Fine.")))
        for number, question in enumerate(questions):
            if number:
                begin(page)
            chat(page, question)
        open_list(page)

    return make


def menu(page, name):
    close_list(page)
    page.locator(".menu summary").click()
    page.locator(".menu").get_by_role("button", name=name).click()


def upload(page, name, text):
    file = {"name": name, "mimeType": "text/plain", "buffer": text.encode()}
    page.locator("#import-file").set_input_files(file)


def saved(page, press):
    with page.expect_download() as download:
        press()
    return download.value.path().read_text(), download.value.suggested_filename


@pytest.mark.parametrize("width", SIZES)
def test_conversations_are_found_renamed_and_kept(talk, page):
    talk("First of all", "Second thing")
    assert titles(page) == ["Second thing", "First of all"]
    page.locator("#search").fill("FIRST")
    page.locator("#list li:nth-child(2)").wait_for(state="detached")
    assert titles(page) == ["First of all"]
    page.locator("#search").fill("nowhere")
    page.get_by_text("Nothing found.").wait_for()
    page.locator("#search").fill("")
    page.locator("#list li:nth-child(2)").wait_for()
    page.locator("#list .title").first.focus()
    page.keyboard.press("F2")
    page.keyboard.type("Renamed")
    page.keyboard.press("Enter")
    assert titles(page) == ["Renamed", "First of all"]
    assert page.locator(".pane h2").text_content() == "Renamed"
    reload(page)
    assert page.locator(".pane h2").text_content() == "Renamed"  # the one that was open
    open_list(page)
    page.get_by_role("button", name="First of all", exact=True).click()
    assert text_of(page.locator("article.user")) == "First of all"


def test_a_page_that_is_left_keeps_what_its_visitor_has_just_done(talk, page):
    talk("First")
    page.locator("#list .title").focus()
    page.keyboard.press("F2")
    page.keyboard.type("Renamed")
    renames = """() => document.querySelector("#list input").dispatchEvent(
        new KeyboardEvent("keydown", { key: "Enter" }))"""
    page.evaluate(f"addEventListener('pagehide', {renames})")  # with its last step
    reload(page)
    assert page.locator(".pane h2").text_content() == "Renamed"


@pytest.mark.parametrize("width", SIZES)
def test_a_deleted_conversation_comes_back_by_undo(talk, page):
    talk("First", "Second")
    page.get_by_role("button", name="Delete First").click()
    assert titles(page) == ["Second"]
    page.get_by_role("button", name="Undo").click()
    assert titles(page) == ["Second", "First"]
    menu(page, "Delete")
    page.get_by_text("Deleted “First”.").wait_for()
    reload(page)
    assert titles(page) == ["Second"]


@pytest.mark.parametrize("width", SIZES)
def test_undo_is_offered_for_ten_seconds(talk, page):
    page.clock.install()
    talk("First")
    # Else it goes on between two actions.
    page.clock.pause_at(page.evaluate("Date.now()") / 1000 + 1)
    page.get_by_role("button", name="Delete First").click()
    page.clock.run_for(9_900)
    page.get_by_role("button", name="Undo").click()  # beside the drawer, which is open
    open_list(page)
    page.get_by_role("button", name="Delete First").click()
    page.clock.run_for(10_100)
    assert page.get_by_role("button", name="Undo").count() == 0


@pytest.mark.parametrize("width", SIZES)
def test_a_switch_keeps_nothing_and_gives_nothing_up_before_the_end(talk, page):
    talk("First")
    page.get_by_role("button", name="Preferences").click()
    page.get_by_label("Keep conversations in this browser").uncheck()
    page.get_by_role("button", name="Done").click()
    assert titles(page) == ["First"]
    chat(page, "More")
    reload(page)
    open_list(page)
    page.get_by_text("No conversations yet.").wait_for()
    chat(page, "Second")
    open_list(page)
    page.get_by_role("button", name="Preferences").click()
    page.get_by_label("Keep conversations in this browser").check()
    page.get_by_role("button", name="Done").click()
    reload(page)
    open_list(page)
    page.get_by_role("button", name="Second", exact=True).wait_for()


@pytest.mark.parametrize(("script", "why"), [(NO_DATABASE, "has no storage"), (FULL, "is full")])
def test_without_storage_the_page_works_and_says_so(talk, page, script, why):
    page.add_init_script(script)
    talk("First", "Second")
    assert why in page.locator("#storage").text_content()
    page.get_by_role("button", name="First", exact=True).click()
    assert text_of(page.locator("article.user")) == "First"
    text, _ = saved(page, page.get_by_role("button", name="Export all as JSON").click)
    assert len(json.loads(text)["conversations"]) == 2


def test_another_tab_sees_what_this_one_keeps(talk, page):
    talk("First")
    other = page.context.new_page()
    other.goto(page.url)
    other.get_by_role("button", name="First", exact=True).click()
    other.locator("#input").fill("a draft")
    say(page, "More")
    other.locator("article.assistant .note:visible").nth(1).wait_for()
    assert other.locator("#input").input_value() == "a draft"
    page.get_by_role("button", name="Delete First").click()
    say(other, "Still here?")  # an open conversation outlives its deletion elsewhere
    other.locator("article.assistant .note:visible").nth(2).wait_for()
    page.get_by_role("button", name="First", exact=True).wait_for()


def test_two_tabs_that_answer_in_one_conversation_lose_nothing(talk, page):
    talk("First")
    other = page.context.new_page()
    other.add_init_script(NO_CHANNEL)  # it hears of no write before its own, as in a race
    other.goto(page.url)
    other.get_by_role("button", name="First", exact=True).click()
    asked = {}

    def ask(tab, text):
        tab.route("**/v1/chat/completions", lambda route: asked.update({text: route}))
        say(tab, text)
        wait_for(lambda: tab.wait_for_timeout(20) or text in asked)

    def answers(tab, text):
        delta = {"delta": {"content": f"{text}!"}, "finish_reason": "stop"}
        body = f"data: {json.dumps({'choices': [delta]})}\n\ndata: [DONE]\n\n"
        asked[text].fulfill(content_type="text/event-stream", body=body)
        tab.get_by_text(f"{text}!", exact=True).wait_for()

    tabs = {"Here": page, "There": other}
    for text, tab in tabs.items():
        ask(tab, text)
    for text, tab in tabs.items():
        answers(tab, text)
    for tab in (other, page):
        tab.get_by_text(re.compile("[12]/2")).first.wait_for()
        text, _ = saved(tab, tab.get_by_role("button", name="Export all as JSON").click)
        [conversation] = json.loads(text)["conversations"]
        found = {message["content"] for message in conversation["messages"]}
        reload(page)
        assert found == {"First", "Fine.", "Here", "Here!", "There", "There!"}


@pytest.mark.parametrize("kind", ["JSON", "Markdown"])
@pytest.mark.parametrize("width", SIZES)
def test_an_export_comes_back(talk, page, kind):
    talk("First", "Second")
    text, name = saved(page, page.get_by_role("button", name=f"Export all as {kind}").click)
    assert name == {"JSON": "conversations.json", "Markdown": "conversations.md"}[kind]
    one, name = saved(page, lambda: menu(page, f"Export as {kind}"))
    assert name.startswith("Second.") and "First" not in one
    open_list(page)
    for title in ("First", "Second"):
        page.get_by_role("button", name=f"Delete {title}").click()
    assert titles(page) == []
    upload(page, name, text)
    page.get_by_text("Imported 2 conversations.").wait_for()
    assert sorted(titles(page)) == ["First", "Second"]
    reload(page)
    open_list(page)
    page.get_by_role("button", name="First", exact=True).click()
    assert text_of(page.locator("article.user")) == "First"
    assert text_of(page.locator("article.assistant")) == "Fine."
    upload(page, name, text)
    page.get_by_text("Nothing new: 2 were already here.").wait_for()
    assert sorted(titles(page)) == ["First", "Second"]
    open_list(page)
    page.get_by_role("button", name="Delete Second").click()
    upload(page, name, text)
    page.get_by_text("Imported 1 conversation. 1 was already here.").wait_for()
    assert page.locator(".pane h2").text_content() == "Second"


@pytest.mark.parametrize("text", ["\x89PNG", "{}", '{"format": "switchyard.conversations"}', ""])
def test_a_wrong_file_is_one_sentence_and_nothing_is_lost(talk, page, text):
    talk("First")
    upload(page, "holiday.json", text)
    page.get_by_text("Nothing was imported from holiday.json: it").wait_for()
    reload(page)
    page.get_by_role("button", name="First", exact=True).wait_for()
    assert titles(page) == ["First"]
