"""How the page fits windows and people: widths, themes, keyboard alone, assistive technology."""

import pytest

from tests.page.conftest import (
    SIZES,
    answer,
    chat,
    complete,
    open_list,
    say,
    text_of,
    titles,
    wait_until_begun,
)
from tests.scripted import ScriptedBackend, says

pytestmark = pytest.mark.page
TEXT = "# Head\n\nSee:\n\n```c\nint x;\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n- [x](https://y.example)\n"


@pytest.fixture
def focus(page):
    """What has the focus, after Tab was pressed until it is there; 80 times at most."""

    def move(selector, key="Tab"):
        for _ in range(80):
            if page.evaluate("(which) => document.activeElement.matches(which)", selector):
                return
            page.keyboard.press(key)
        raise AssertionError(f"Tab does not reach {selector}")

    return move


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [*SIZES, 320])
def test_a_window_has_all_of_it_in_both_themes(visit, page, width, scheme):
    page.emulate_media(color_scheme=scheme)
    visit(ScriptedBackend(says("```\n", "x" * 200, "\n```\n", "y" * 200)))
    chat(page, "Hi!" * 100)
    page.locator("#brief").click()
    page.get_by_role("img", name="Tokens per second").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == width
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert back == {"light": "rgb(246, 247, 249)", "dark": "rgb(18, 22, 27)"}[scheme]
    for name in ("Settings", "More"):
        page.locator(".pane").get_by_text(name, exact=True).click()
        assert page.evaluate("document.documentElement.scrollWidth") == width
        page.keyboard.press("Escape")
    column = page.locator("#panes").bounding_box()
    assert column["width"] < 800  # 75 characters and the edges


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", SIZES)
def test_axe_finds_nothing(visit, page, scheme):
    from axe_playwright_python.sync_playwright import Axe  # scripts/test-page installs it

    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    visit(ScriptedBackend(says("<think>", "Hm.", "</think>", TEXT)))
    chat(page, "Hi!").get_by_text("Thoughts").click()
    page.get_by_role("button", name="Regenerate").click()
    page.get_by_text("2/2").wait_for()
    complete(page)
    page.locator("#context .used").wait_for()
    found = []

    def look(state):
        violations = Axe().run(page).response["violations"]
        found.extend((state, one["id"], one["nodes"][0]["html"][:200]) for one in violations)

    page.locator("#brief").click()
    page.get_by_role("img", name="Tokens per second").wait_for()
    look("answer")
    page.locator("#brief").click()
    page.get_by_role("button", name="Settings").click()
    for group in page.locator("#settings summary").all():
        group.click()
    look("settings")
    page.get_by_role("button", name="Done").click()
    page.keyboard.press("Control+/")
    look("keys")
    page.get_by_role("button", name="Close", exact=True).last.click()
    page.get_by_role("button", name="Edit").first.click()
    look("edit")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Compare").click()
    page.locator(".pane").nth(1).get_by_text("More").click()
    open_list(page)
    page.get_by_role("button", name="Delete Hi!", exact=True).click()
    page.get_by_text("Deleted").wait_for()
    look("list")
    assert found == []


@pytest.mark.parametrize("width", SIZES)
def test_all_of_a_chat_goes_by_keyboard(visit, page, focus):
    count = iter(range(1, 100))
    visit(ScriptedBackend(lambda job: says(f"Answer {next(count)}.")(job)))
    page.get_by_text("0 running").wait_for()
    focus("#input")
    page.keyboard.type("First")
    page.keyboard.press("Control+Enter")
    assert text_of(complete(page)) == "Answer 1."
    focus("article.assistant .tools button:nth-child(3)", "Shift+Tab")  # Regenerate
    page.keyboard.press("Enter")
    complete(page).get_by_text("2/2").wait_for()
    assert page.evaluate("document.activeElement.textContent") == "Regenerate"
    focus(".alternatives button:first-child", "Shift+Tab")
    page.keyboard.press("Enter")
    assert text_of(answer(page)) == "Answer 1."
    page.keyboard.press("Control+Shift+O")
    assert page.evaluate("document.activeElement.id") == "input"
    page.keyboard.type("Second")
    page.keyboard.press("Control+Enter")
    complete(page)
    page.keyboard.press("Control+k")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert page.locator(".pane h2").text_content() == "First"
    page.keyboard.press("Control+k")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("End")
    page.keyboard.press("Delete")
    assert titles(page) == ["Second"]
    page.keyboard.press("Escape")
    page.keyboard.press("Control+/")
    page.locator("#help").get_by_text("Ctrl+Shift+O").wait_for()
    page.keyboard.press("Escape")
    focus("#notices button")
    page.keyboard.press("Enter")
    assert page.locator(".pane h2").text_content() == "First"


@pytest.mark.parametrize("width", SIZES)
def test_messages_settings_and_columns_go_by_keyboard(visit, page, focus):
    count = iter(range(1, 100))
    visit(ScriptedBackend(lambda job: says(f"Answer {next(count)}.")(job)))
    page.get_by_text("0 running").wait_for()
    tool = "article.{} .tools button:nth-child({})".format

    def enter(selector, key="Shift+Tab"):
        focus(selector, key)
        page.keyboard.press("Enter")

    chat(page, "One")
    enter(tool("user", 2))  # Edit
    page.keyboard.press("Control+A")
    page.keyboard.type("Two")
    page.keyboard.press("Control+Enter")
    answer(page).get_by_text("Answer 2.").wait_for()
    complete(page)
    enter(tool("assistant", 4))  # Continue
    answer(page).get_by_text("Answer 2.Answer 3.").wait_for()
    complete(page)
    enter(tool("assistant", 6), "Tab")  # Delete
    assert page.locator("article.message").count() == 1
    enter("#notices button", "Tab")  # Undo
    enter(tool("assistant", 5))  # Branch
    assert page.locator(".pane h2").text_content() == "One (branch)"
    enter(".pane > header button:first-child")  # Settings
    focus("#settings [name=system]")
    page.keyboard.type("Be brief.")
    enter("#settings button.main", "Tab")
    enter(".pane > header button:nth-child(2)")  # Compare
    assert page.locator(".pane").count() == 2
    page.keyboard.type("Three")
    page.keyboard.press("Control+Enter")
    assert "Answer" in text_of(complete(page, 1))
    enter(".pane:nth-child(2) > header button:nth-child(2)")  # Close this column
    assert page.locator(".pane").count() == 1


@pytest.mark.parametrize("width", SIZES)
def test_files_and_preferences_go_by_keyboard(visit, page, focus, tmp_path):
    page.on("filechooser", lambda _: None)  # so that the browser reports all
    counts = []
    page.route("**/token-count", lambda route: counts.append(route))
    visit(ScriptedBackend(says("Fine.")))
    chat(page, "One")
    notes = tmp_path / "notes.txt"
    notes.write_text("some notes")
    focus("#attach")
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Enter")
    chooser.value.set_files(notes)
    page.get_by_role("button", name="Remove notes.txt").wait_for()
    focus("#files button", "Shift+Tab")
    counts[0].continue_()
    page.locator("#files").get_by_text("tokens").wait_for()
    page.keyboard.press("Enter")
    assert page.locator("#files").is_hidden()
    focus(".menu > summary", "Shift+Tab")
    page.keyboard.press("Enter")
    focus(".menu button:nth-child(2)")  # Export as JSON
    with page.expect_download() as download:
        page.keyboard.press("Enter")
    page.keyboard.press("Control+K")
    focus("#import")
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Enter")
    chooser.value.set_files(download.value.path())
    page.get_by_text("Nothing new: 1 was already here.").wait_for()
    page.keyboard.press("Control+K")
    focus("#open-preferences")
    page.keyboard.press("Enter")
    focus("#keeps")
    page.keyboard.press("Space")
    assert not page.locator("#keeps").is_checked()
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    focus("#brief", "Shift+Tab")
    page.keyboard.press("Enter")
    page.get_by_role("img", name="Tokens per second").wait_for()


@pytest.mark.parametrize("width", SIZES)
def test_markdown_fits_the_window_and_its_code_is_copied(visit, page, focus):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    long = "x" * 300
    visit(
        ScriptedBackend(says(TEXT, f"\n```python\ndef {long}():\n```\n", "**b** ~~d~~\n- [ ] t\n"))
    )
    shown = chat(page, "Hi!")
    assert shown.locator("h1, table, ul, strong, del, input[type=checkbox]").count() == 7
    assert shown.locator("a").get_attribute("rel") == "noopener noreferrer"
    assert shown.locator(".language").all_text_contents() == ["c", "python"]
    assert shown.locator(".keyword").all_text_contents() == ["int", "def"]
    assert shown.locator("pre").last.evaluate("(pre) => pre.scrollWidth > pre.clientWidth")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    focus(".copy", "Shift+Tab")  # the last one
    page.keyboard.press("Enter")
    shown.get_by_text("Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == f"def {long}():\n"


@pytest.mark.parametrize("width", SIZES)
def test_enter_sends_or_breaks_the_line_by_the_window(visit, page, width):
    visit(ScriptedBackend(says("Fine.")))
    page.locator("#input").fill("Hi!")
    page.locator("#input").press("Shift+Enter")
    page.locator("#input").press("Enter")
    if width == 390:
        assert page.locator("#input").input_value() == "Hi!\n\n"
        page.locator("#send").click()
    assert text_of(complete(page)) == "Fine."


@pytest.mark.parametrize("width", [390])
def test_on_a_phone_the_list_is_a_drawer_and_one_part_scrolls(visit, page):
    page.emulate_media(reduced_motion="reduce")
    visit(ScriptedBackend(says("Long. " * 500)))
    chat(page, "Hi!")
    scrollers = """() => [...document.querySelectorAll("*")].filter((one) =>
        one.scrollHeight > one.clientHeight + 1
        && /auto|scroll/.test(getComputedStyle(one).overflowY)
        && one.checkVisibility({ visibilityProperty: true })).map((one) => one.id)"""
    # Text outside the window has its height only after the next frame.
    page.wait_for_function("scroller.scrollHeight > scroller.clientHeight + 1")
    assert page.evaluate(scrollers) == ["scroller"]
    at = "scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight"
    page.wait_for_function(f"{at} < 2")  # it follows the answer
    assert not page.locator("#sidebar").is_visible()
    page.get_by_role("button", name="Show conversations").click()
    assert page.locator("#new").is_visible()
    assert page.locator("main").evaluate("(main) => main.inert")
    page.keyboard.press("Escape")
    assert not page.locator("#sidebar").is_visible()
    assert page.evaluate("document.activeElement.id") == "menu"
    page.get_by_role("button", name="Show conversations").click()
    page.mouse.click(380, 400)
    assert not page.locator("#sidebar").is_visible()
    page.set_viewport_size({"width": 390, "height": 380})  # the keyboard has come up
    box = page.locator("#input").bounding_box()
    assert box["y"] + box["height"] < 380 and page.locator("#send").is_visible()


def test_a_touch_screen_s_keyboard_comes_only_for_what_is_typed(serve, browser):
    size = {"width": 390, "height": 800}
    context = browser.new_context(viewport=size, has_touch=True, is_mobile=True)
    page = context.new_page()
    page.goto(serve(ScriptedBackend(says("Fine."))).url)
    wait_until_begun(page)
    send = page.locator("#send").bounding_box()
    say(page, "Hi!")
    fields = "document.activeElement.matches('input, textarea')"

    def tap(name, last=False):
        found = page.get_by_role("button", name=name, exact=True)
        (found.last if last else found).tap()
        page.wait_for_function(f"() => !{fields}")

    complete(page)
    page.locator("#context .used").wait_for()
    assert page.locator("#send").bounding_box() == send  # the meter hasn't moved it
    tap("Regenerate")
    complete(page)
    tap("Delete", last=True)
    tap("Undo")
    tap("Settings")
    tap("Done")
    tap("Show conversations")
    tap("New conversation")
    tap("Compare")
    page.locator("#input").tap()
    assert page.evaluate(fields)
    context.close()
