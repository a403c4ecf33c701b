"""The server's own page: answers, and what goes wrong, over a model that a test scripts."""

import json
import re
import threading

import pytest

from switchyard.engine.messages import Chunk, Started
from tests.conftest import wait_for
from tests.operations.conftest import KEYS, entry
from tests.page.conftest import SIZES, answer, begin, chat, complete, reload, say, text_of
from tests.scripted import Gate, ScriptedBackend, finished, says, ticking

pytestmark = pytest.mark.page
# Each answer of a test is long enough to be told from others, and has no Markdown.


@pytest.mark.parametrize("width", SIZES)
def test_an_answer_comes_as_it_is_written_and_tells_its_figures(visit, page):
    gate = Gate()
    try:
        visit(ScriptedBackend(says("Hello ", "you ", "there."), gate))
        say(page, "Hi!")
        gate.step(3)
        answer(page).get_by_text("Hello you").wait_for()
        assert "there" not in answer(page).text_content()
        assert page.locator("#send").is_disabled()
        assert page.locator("#told").text_content() == ""
    finally:
        gate.open()
    note = complete(page).locator(".note").text_content()
    assert re.fullmatch(
        r"3 tokens; [\d.]+ tokens/s; first after [\d.]+ s; prompt \d+(, \d+ of them cached)?", note
    )
    assert page.locator("#send").is_enabled()
    assert page.evaluate("document.activeElement.id") == "input"
    assert "Hello you there." in page.locator("#told").text_content()


@pytest.mark.parametrize("width", SIZES)
def test_escape_ends_the_job_and_keeps_what_came(visit, page):
    client = visit(ScriptedBackend(ticking))
    say(page, "Go on.")
    answer(page).get_by_text("xx").wait_for()
    page.keyboard.press("Escape")
    assert "stopped" in complete(page).text_content()
    wait_for(lambda: client.models.num_jobs == 0)
    reload(page)
    assert "xx" in complete(page).text_content()


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
    codes = [chr(65 + number) * 5 for number in range(8)]
    try:
        client = visit(ScriptedBackend(repeat, gate))
        clients.append(client)
        for number, code in enumerate(codes):
            begin(page)
            say(page, f"Repeat the code {code}")
            if number == 5:
                page.get_by_text("Waiting: 5 answers are in progress").wait_for()
                wait_for(lambda: client.models.num_jobs == 5)
    finally:
        gate.open()
    for code in codes:
        page.get_by_role("button", name=f"Repeat the code {code}", exact=False).first.click()
        shown = text_of(complete(page)).split()
        assert set(shown) == {code} and len(shown) == 30


HOSTILE = [
    "<img src=x onerror=\"document.title='owned'\">",
    "<script>document.title='owned'</script>",
    "[a link](javascript:document.title='owned')",
    "![a picture](https://elsewhere.example/x.png)",
    "\u202eright to left\u202c \u05e9\u05dc\u05d5\u05dd",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_what_a_model_writes_executes_and_loads_nothing(visit, page, text):
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    client = visit(ScriptedBackend(says(*text)))
    shown = chat(page, text)
    assert text_of(page.locator("article.user")) == text
    assert page.locator(".pane img, .pane script, .pane iframe").count() == 0
    for link in shown.locator("a").all():
        link.click(modifiers=["Alt"], no_wait_after=True, trial=True)
        assert re.match("https?:|mailto:", link.get_attribute("href"))
    assert page.title() == "Switchyard"
    assert page.locator("#list .title").text_content() == text
    assert all(url.startswith(client.url) for url in asked)


@pytest.mark.parametrize("width", [390])
def test_a_line_of_ten_megabytes_leaves_the_page_usable(visit, page):
    long = says(*["x" * 100_000] * 100)
    answers = [long, says("Short.")]
    visit(ScriptedBackend(lambda job: answers.pop(0)(job)))
    say(page, "Hi!")
    length = "shown => shown.textContent.length"
    assert complete(page).locator(".text").evaluate(length) == 10_000_000
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    reload(page)
    assert complete(page).locator(".text").evaluate(length) == 10_000_000
    begin(page)
    assert text_of(chat(page, "Once more.")) == "Short."


def test_thoughts_are_folded(visit, page):
    visit(ScriptedBackend(says("<think>", "secret plan", "</think>", "Answer.")))
    shown = chat(page, "Hi!")
    assert not shown.locator(".thoughts").is_visible()
    shown.get_by_text("Thoughts").click()
    shown.get_by_text("secret plan").wait_for()
    assert text_of(shown).strip() == "Answer."


def test_a_wrong_key_is_said_in_words_and_the_conversation_kept(visit, page, tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text(entry("ann"))
    path.chmod(0o600)
    visit(ScriptedBackend(says("Fine.")), keys_file=str(path))
    say(page, "Hi!")
    keys = {"sk-sy-wrong": "This server needs an API key.", KEYS["ann"]: "The server refuses this"}
    for key, trouble in keys.items():
        page.locator(".pane").get_by_text(trouble).wait_for()
        page.locator("#trouble").get_by_text(trouble).wait_for()
        page.get_by_role("button", name="Enter the key").first.click()
        page.get_by_label("API key").fill(key)
        page.get_by_role("button", name="Done").click()
        page.get_by_role("button", name="Try again").click()
    assert text_of(complete(page)) == "Fine."
    assert text_of(page.locator("article.user")) == "Hi!"
    page.get_by_text("0 running").wait_for()
    reload(page)
    assert page.locator("#key").input_value() == KEYS["ann"]
    stored = page.evaluate("JSON.stringify({...localStorage})")
    assert KEYS["ann"] not in stored  # the tab's end forgets it


@pytest.mark.parametrize("width", SIZES)
def test_the_state_of_the_server_changes_under_load(visit, page):
    gate = Gate()
    try:
        visit(ScriptedBackend(says(*["a"] * 1000), gate))
        brief = page.locator("#brief")
        brief.get_by_text("0 running, 0 waiting").wait_for()
        brief.click()
        say(page, "Hi!")
        while "1 running, 0 waiting" not in brief.text_content():
            gate.step()  # the engine tells its numbers four times a second, behind an iteration
            page.wait_for_timeout(50)
    finally:
        gate.open()
    page.get_by_text("0 running, 0 waiting").wait_for()
    page.get_by_role("img", name=re.compile("Tokens per second")).wait_for()
    assert page.locator(".chart").text_content().endswith("60 s agonow")


def test_the_queue_is_shown_by_its_places(visit, page):
    may_end = threading.Event()

    def wait(job):
        while not may_end.wait(0.001):
            yield Started(job.identifier)
        yield from says("Done.")(job)

    try:
        visit(ScriptedBackend(wait, max_active=1), max_batch_size=1)
        page.locator("#brief").click()
        for _ in range(3):
            begin(page)
            say(page, "Hi!")
        places = page.locator("#status ol li")
        places.nth(1).wait_for()
        assert places.evaluate_all("rows => rows.map((row) => row.value)") == [1, 2]
        assert re.search(r": \d+ prompt tokens, waiting for \d+ s$", places.first.text_content())
    finally:
        may_end.set()
    page.locator("#status ol").wait_for(state="detached")


def test_a_server_that_is_gone_is_said_and_the_conversation_kept(visit, page):
    client = visit(ScriptedBackend(says("Here.")))
    chat(page, "Hi!")
    page.route("**/v1/chat/completions", lambda route: route.abort("connectionrefused"))
    page.route("**/ui/status", lambda route: route.abort("connectionrefused"))
    say(page, "Still there?")
    page.get_by_text("The server does not respond. The conversation is kept").first.wait_for()
    reload(page)
    page.locator(".pane").get_by_text("Still there?").first.wait_for()
    assert text_of(complete(page)) == "Here."
    page.locator("#trouble").get_by_text("Next check in 3 s").wait_for()
    page.unroute("**/v1/chat/completions")
    page.unroute("**/ui/status")
    page.locator("#brief").get_by_text("ready").wait_for()
    assert client.models.num_jobs == 0


LARGEST_STEP = """() => {
  let before = self.largest = 0;
  const turn = () => setTimeout(() => {
    const now = document.querySelector("article.assistant .text")?.textContent.length ?? 0;
    self.largest = Math.max(self.largest, now - before);
    before = now;
    turn();
  });
  turn();
}"""


def test_an_answer_that_comes_at_once_leaves_the_page_time_for_its_visitor(visit, page):
    visit(ScriptedBackend(says("Here.")))
    piece = ("word *and* `code` \U0001f600 " * 1000)[:16_384]
    deltas = [{"index": 0, "delta": {"content": piece}}] * 20
    deltas.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    body = "".join(f"data: {json.dumps({'choices': [delta]})}\n\n" for delta in deltas)
    stream = {"content_type": "text/event-stream", "body": f"{body}data: [DONE]\n\n"}
    page.route("**/v1/chat/completions", lambda route: route.fulfill(**stream))
    page.evaluate(LARGEST_STEP)
    chat(page, "Hi!")
    text = text_of(answer(page))
    assert page.evaluate("self.largest") < len(text) / 3, len(text)
    assert "\ufffd" not in text
    assert text.count("\U0001f600") == (piece * 20).count("\U0001f600")


@pytest.mark.parametrize(
    "cut", ["data: [DONE]\n\n", 'data: {"error": {"message": "no memory"}}\n\n']
)
def test_an_answer_that_is_cut_off_keeps_what_came(visit, page, cut):
    visit(ScriptedBackend(says("Whole.")))
    half = 'data: {"choices": [{"index": 0, "delta": {"content": "Half"}}]}\n\n'
    stream = {"content_type": "text/event-stream", "body": half + cut}
    page.route("**/v1/chat/completions", lambda route: route.fulfill(**stream))
    say(page, "Hi!")
    page.locator(".pane").get_by_text("The answer was cut off: ").wait_for()
    assert text_of(answer(page)) == "Half"
    page.unroute("**/v1/chat/completions")
    with page.expect_request("**/v1/chat/completions") as asked:
        page.get_by_role("button", name="Continue").click()
    assert asked.value.post_data_json["messages"][-1] == {"role": "assistant", "content": "Half"}
    answer(page).get_by_text("HalfWhole.").wait_for()
