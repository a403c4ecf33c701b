"""The server's own page: chat, and how the server stands, over a model that a test scripts."""

import re
import threading

import pytest

from switchyard.engine.messages import Chunk, Started
from tests.hosts.conftest import wait_for
from tests.operations.conftest import KEYS, entry
from tests.page.conftest import answer, chat, complete, say
from tests.scripted import Gate, ScriptedBackend, finished, says

pytestmark = pytest.mark.page


def test_an_answer_comes_as_it_is_written_and_tells_its_tokens(visit, page):
    gate = Gate()
    try:
        visit(ScriptedBackend(says("Hello ", "you ", "there."), gate))
        say(page, "Hi!")
        gate.step(3)
        answer(page).get_by_text("Hello you").wait_for()
        assert "there" not in answer(page).text_content()
        assert chat(page).get_by_role("button", name="Send").is_disabled()
    finally:
        gate.open()
    assert re.search(r"3 tokens, [\d.]+ tokens/s", complete(page).text_content())
    assert chat(page).get_by_role("button", name="Send").is_enabled()
    assert page.evaluate("document.activeElement.tagName") == "TEXTAREA"


def test_escape_ends_the_job_and_keeps_what_came(visit, page):
    def endless(job):
        yield Started(job.identifier)
        yield Chunk(job.identifier, "begun", (0,))
        while True:
            yield Started(job.identifier)

    client = visit(ScriptedBackend(endless))
    say(page, "Go on.")
    answer(page).get_by_text("begun").wait_for()
    page.keyboard.press("Escape")
    assert "stopped" in complete(page).text_content()
    wait_for(lambda: client.models.num_jobs == 0)
    page.reload()
    assert "begun" in answer(page).text_content()


def test_eight_conversations_at_once_get_their_own_answers(visit, page):
    clients = []

    def repeat(job):
        prompt = clients[0].models.get().tokenizer.decode(job.prompt)
        code = re.findall(r"code ([A-Z]+)", prompt)[-1]
        yield Started(job.identifier)
        for i in range(30):
            yield Chunk(job.identifier, f"{code} ", (i,))
        yield finished(job, 30)

    gate = Gate()
    try:
        client = visit(ScriptedBackend(repeat, gate))
        clients.append(client)
        codes = {number: f"{chr(64 + number) * 5}" for number in range(1, 9)}
        for number, code in codes.items():
            if number > 1:
                page.get_by_role("button", name="New conversation").click()
            say(page, f"Repeat the code {code}", number)
            if number == 6:
                chat(page, 6).get_by_text("Waits: 5 answers are on their way").wait_for()
                wait_for(lambda: client.models.num_jobs == 5)
    finally:
        gate.open()
    for number, code in codes.items():
        shown = complete(page, number).locator(".text").text_content()
        assert set(shown.split()) == {code} and len(shown.split()) == 30


HOSTILE = [
    "<img src=x onerror=\"document.title='owned'\">",
    "<script>document.title='owned'</script>",
    "[a link](javascript:document.title='owned')",
    "\u202eright to left\u202c \u05e9\u05dc\u05d5\u05dd",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_what_a_model_writes_is_text(visit, page, text):
    visit(ScriptedBackend(says(*text)))
    say(page, text)
    assert complete(page).locator(".text").text_content() == text
    assert chat(page).locator("article.user .text").text_content() == text
    assert chat(page).locator("img, script, a, iframe").count() == 0
    assert page.title() == "Switchyard"


def test_a_word_of_a_megabyte_leaves_the_page_usable(visit, page):
    visit(ScriptedBackend(says(*["x" * 50_000] * 20)))
    say(page, "Hi!")
    assert len("".join(complete(page).locator(".text").all_text_contents())) == 1_000_000
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    say(page, "Once more.")
    assert complete(page).count() == 1


def test_code_is_a_block_however_it_comes(visit, page):
    text = "See:\n```python\nif a < b:\n    `x`\n```\nDone ``` so."
    gate = Gate()
    try:
        visit(ScriptedBackend(says(*text), gate))
        say(page, "Hi!")
        gate.step(text.index("`") + 3)  # within the first three backticks
        chat(page).get_by_text("See:").wait_for()
    finally:
        gate.open()
    shown = complete(page)
    assert shown.locator("pre").text_content() == "if a < b:\n    `x`\n"
    assert shown.locator(".language").text_content() == "python"
    assert shown.locator(".text").all_text_contents() == ["See:\n", "Done ``` so."]


def test_thoughts_are_folded(visit, page):
    visit(ScriptedBackend(says("<think>", "secret plan", "</think>", "Answer.")))
    say(page, "Hi!")
    shown = complete(page)
    assert not shown.locator(".thoughts").is_visible()
    shown.get_by_text("Thoughts").click()
    shown.get_by_text("secret plan").wait_for()
    assert shown.locator(":scope > .text").text_content() == "Answer."


def test_a_wrong_key_is_said_in_words_and_the_conversation_kept(visit, page, tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text(entry("ann"))
    path.chmod(0o600)
    visit(ScriptedBackend(says("Fine.")), keys_file=str(path))
    say(page, "Hi!")
    chat(page).get_by_text("The API key is missing or wrong.").wait_for()
    page.get_by_label("API key").fill("sk-sy-wrong")
    chat(page).get_by_role("button", name="Try again").click()
    chat(page).get_by_text("The API key is missing or wrong.").wait_for()
    page.get_by_label("API key").fill(KEYS["ann"])
    chat(page).get_by_role("button", name="Try again").click()
    assert "Fine." in complete(page).text_content()
    assert chat(page).locator("article.user .text").text_content() == "Hi!"
    page.get_by_text("0 running").wait_for()


def test_a_full_queue_is_said_with_the_wait(visit, page):
    gate = Gate()
    try:
        visit(ScriptedBackend(says("First."), gate, max_active=1), max_batch_size=1, max_pending=1)
        for number in (1, 2, 3):
            if number > 1:
                page.get_by_role("button", name="New conversation").click()
            say(page, "Hi!", number)
        said = page.locator(".chat .trouble").text_content()
        assert re.match(r"Too much at once: .* Try again in \d+ s\.", said)
    finally:
        gate.open()
    page.get_by_role("button", name="Try again").click()
    for number in (1, 2, 3):
        assert "First." in complete(page, number).text_content()


def test_a_model_that_loads_is_said_and_the_page_sees_it_ready(visit, page):
    backend = ScriptedBackend(says("Awake."))
    backend.opening.clear()
    try:
        visit(backend, wait=False)
        page.locator("#brief").get_by_text("loading").wait_for()
        say(page, "Hi!")
        chat(page).get_by_text(re.compile("Not ready: .*load")).wait_for()
    finally:
        backend.opening.set()
    page.locator("#brief").get_by_text("ready").wait_for()
    chat(page).get_by_role("button", name="Try again").click()
    assert "Awake." in complete(page).text_content()


def test_the_status_changes_under_load(visit, page):
    gate = Gate()
    try:
        visit(ScriptedBackend(says(*["a"] * 1000), gate))
        page.get_by_text("0 running, 0 waiting").wait_for()
        say(page, "Hi!")
        status = page.locator("#brief")
        while "1 running, 0 waiting" not in status.text_content():
            gate.step()  # the engine tells its numbers four times a second, behind an iteration
            page.wait_for_timeout(100)
    finally:
        gate.open()
    page.get_by_text("0 running, 0 waiting").wait_for()
    assert page.get_by_role("img", name=re.compile("Tokens a second")).count() == 1


def test_calls_of_tools_are_shown_and_their_results_asked_for(visit, page):
    call = '{"name": "look", "arguments": {"at": "<b>x</b>"}}'
    answers = [says("<tool_call>", call, "</tool_call>"), says("It is seen.")]
    visit(ScriptedBackend(lambda job: answers.pop(0)(job)), tool_format="hermes")
    page.get_by_text("Settings").click()
    tools = '[{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]'
    page.get_by_label("Tools, as a JSON list").fill(tools)
    say(page, "Look!")
    shown = complete(page).locator(".call")
    assert shown.locator("strong").text_content() == "look"
    assert shown.locator("pre").text_content() == '{"at": "<b>x</b>"}'
    chat(page).get_by_text("Result of the tool look").wait_for()
    with page.expect_request("**/v1/chat/completions") as asked:
        say(page, "a mirror")
    _, called, result = asked.value.post_data_json["messages"]
    assert called["tool_calls"][0]["function"] == {
        "name": "look",
        "arguments": '{"at": "<b>x</b>"}',
    }
    assert (result["role"], result["content"]) == ("tool", "a mirror")
    chat(page).get_by_text("It is seen.").wait_for()


def test_the_queue_is_shown_by_its_places(visit, page):
    may_end = threading.Event()

    def wait(job):
        while not may_end.wait(0.001):
            yield Started(job.identifier)
        yield from says("Done.")(job)

    try:
        visit(ScriptedBackend(wait, max_active=1), max_batch_size=1)
        for number in (1, 2, 3):
            if number > 1:
                page.get_by_role("button", name="New conversation").click()
            say(page, "Hi!", number)
        places = page.locator("#status ol li")
        places.nth(1).wait_for()
        assert places.evaluate_all("rows => rows.map((row) => row.value)") == [1, 2]
        assert re.search(r": \d+ prompt tokens, waits \d+ s$", places.first.text_content())
    finally:
        may_end.set()
    page.locator("#status ol").wait_for(state="detached")


def test_an_answer_that_waits_for_a_connection_can_be_stopped(visit, page):
    gate = Gate()
    try:
        client = visit(ScriptedBackend(says("Done."), gate))
        for number in range(1, 7):
            if number > 1:
                page.get_by_role("button", name="New conversation").click()
            say(page, "Hi!", number)
        chat(page, 6).get_by_text("Waits:").wait_for()
        page.keyboard.press("Escape")
        assert "stopped" in complete(page, 6).text_content()
        assert chat(page, 6).get_by_text("Waits:").count() == 0
        wait_for(lambda: client.models.num_jobs == 5)
    finally:
        gate.open()
    for number in range(1, 6):
        assert "Done." in complete(page, number).text_content()
    say(page, "Again.", 6)
    chat(page, 6).get_by_text("Done.").wait_for()


def test_a_server_that_is_gone_is_said_and_the_conversation_kept(visit, page):
    client = visit(ScriptedBackend(says("Here.")))
    say(page, "Hi!")
    complete(page)
    page.route("**/v1/chat/completions", lambda route: route.abort("connectionrefused"))
    page.route("**/ui/status", lambda route: route.abort("connectionrefused"))
    say(page, "Still there?")
    chat(page).get_by_text("The server does not answer. The conversation is kept").wait_for()
    page.reload()
    assert "Still there?" in chat(page).text_content() and "Here." in chat(page).text_content()
    page.locator("#trouble").get_by_text("Next look in 3 s").wait_for()
    page.unroute("**/v1/chat/completions")
    page.unroute("**/ui/status")
    page.locator("#brief").get_by_text("ready").wait_for()
    assert client.models.num_jobs == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_window_has_all_of_it_in_both_themes(visit, page, scheme):
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": 320, "height": 640})
    visit(ScriptedBackend(says("```\n", "x" * 200, "\n```\n", "y" * 200)))
    page.get_by_text("Settings").click()
    say(page, "Hi!" * 100)
    complete(page)
    page.get_by_text("0 running, 0 waiting").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == 320
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert back == {"light": "rgb(246, 247, 249)", "dark": "rgb(18, 22, 27)"}[scheme]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(visit, page, scheme):
    from axe_playwright_python.sync_playwright import Axe  # scripts/test-page installs it

    page.emulate_media(color_scheme=scheme)
    visit(ScriptedBackend(says("<think>", "Hm.", "</think>", "See:\n```c\n", "x", "\n```\n")))
    page.get_by_text("Settings").click()
    say(page, "Hi!")
    complete(page).get_by_text("Thoughts").click()
    page.get_by_text("0 running, 0 waiting").wait_for()
    found = Axe().run(page).response["violations"]
    assert [x["id"] for x in found if x["impact"] in ("serious", "critical")] == []


def test_all_of_a_chat_goes_by_keyboard(visit, page):
    visit(ScriptedBackend(says("Hello.")))
    page.keyboard.type("Hi!")
    page.keyboard.press("Enter")
    complete(page)
    page.keyboard.press("Shift+Tab")  # to the messages
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.textContent") == "Close"
    for name in ("settings", "add"):
        while page.evaluate("document.activeElement.closest('#settings, #add')?.id") != name:
            page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    page.keyboard.type("And I?")
    page.keyboard.press("Enter")
    assert "Hello." in complete(page, 2).text_content()
