"""The page of examples/helpdesk: what its visitor sees, and what the server does meanwhile."""

import pytest
import requests

from tests.page.conftest import DRAINING, Jobs, slow_down

pytestmark = pytest.mark.page


@pytest.fixture
def jobs(helpdesk):
    session = requests.Session()
    session.post(f"{helpdesk.url}/login", data={"password": "demo"}).raise_for_status()
    return Jobs(f"{helpdesk.url}/llm", session)


@pytest.fixture
def home(helpdesk, page):
    """The page behind the login."""
    page.goto(helpdesk.url)
    page.get_by_label("Name").fill("Ada")
    page.get_by_label("Password").fill("demo")
    page.get_by_role("button", name="Log in").click()
    page.get_by_text("Hello, Ada.").wait_for()
    return page


def ask(page, question):
    page.locator("input[name=question]").fill(question)
    page.get_by_role("button", name="Ask").click()


def has(page, condition):
    """Wait until it is true of the page's elements."""
    page.wait_for_function(condition)


def text_of(page, name):
    return page.locator(f"#{name}").inner_text()


def test_an_answer_comes_into_the_page_as_it_is_written(home):
    ask(home, "Tell me all.")
    has(home, "answer.textContent.length > 5")
    early = text_of(home, "answer")
    assert home.locator("#send").is_disabled() and home.locator("#stop").is_enabled()
    has(home, f"answer.textContent.length > {len(early)}")
    assert text_of(home, "answer").startswith(early)


def test_stop_ends_the_job_keeps_what_came_and_the_page_can_ask_again(home, jobs, measured):
    before = jobs.cancelled()
    ask(home, "Tell me all.")
    has(home, "answer.textContent.length > 20")
    assert len(jobs.now()) == 1
    home.locator("#stop").click()
    measured(jobs.seconds_until_cancelled(before))
    has(home, "problem.textContent == 'Stopped.'")
    assert len(text_of(home, "answer")) > 20
    assert home.locator("#stop").is_disabled() and home.locator("#send").is_enabled()
    ask(home, "Hello!")
    has(home, "answer.textContent.length > 20")
    assert text_of(home, "problem") == "" and len(jobs.now()) == 1


def test_stop_ends_the_job_at_once_on_a_slow_line(home, jobs, measured):
    before = jobs.cancelled()
    slow_down(home)
    ask(home, "Tell me all.")
    has(home, "answer.textContent.length > 20")
    jobs.wait_until_ahead()
    home.locator("#stop").click()
    measured(jobs.seconds_until_cancelled(before, DRAINING))


def test_a_visitor_who_goes_to_another_page_ends_the_job(home, jobs, helpdesk, measured):
    before = jobs.cancelled()
    ask(home, "Tell me all.")
    has(home, "answer.textContent.length > 20")
    home.goto(f"{helpdesk.url}/login")
    measured(jobs.seconds_until_cancelled(before))


def test_errors_stand_in_the_page(home, page):
    ask(home, "too long " * 5000)
    has(home, "problem.textContent.includes('too long')")
    assert text_of(home, "answer") == ""
    assert home.locator("#send").is_enabled()
    page.context.clear_cookies()
    ask(home, "Hello!")
    has(home, "problem.textContent == 'Log in again.'")
