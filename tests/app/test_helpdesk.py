"""The error handlers of examples/helpdesk."""

import importlib.util

import pytest

from switchyard import engine
from switchyard.app import BadRequest, ClientGone, TimedOut
from switchyard.app.exceptions import Unauthorized
from switchyard.testing import fake
from tests.conftest import ROOT

HELPDESK = ROOT / "examples" / "helpdesk" / "helpdesk.py"
ERRORS = [
    *((BadRequest("m"), 400), (engine.PromptTooLong("m"), 400), (engine.InvalidJob("m"), 400)),
    *((engine.ModelNotFound("m"), 503), (engine.Full("m", 7.0), 503), (engine.Dead("m"), 503)),
    *((engine.JobFailed("m"), 503), (engine.Closed("m"), 503), (TimedOut("m", "x_timeout"), 503)),
    *((ClientGone(), 499), (Unauthorized(), 500)),
]


@pytest.fixture(scope="module")
def user():
    spec = importlib.util.spec_from_file_location("helpdesk", HELPDESK)
    helpdesk = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(helpdesk)
    with fake(helpdesk.app, {}) as user, helpdesk.app.test_client() as client:
        client.post("/login", data={"user": "Ada", "password": "demo"})
        client.answers = user.answers
        yield client


@pytest.mark.parametrize("path", ["/title", "/ask"])
@pytest.mark.parametrize(("error", "status"), ERRORS, ids=repr)
def test_its_handlers_take_what_the_docs_say(user, path, error, status):
    user.answers["why"] = error
    answer = user.post(path, data={"question": "why"}, headers={"Accept": "text/plain"})
    assert answer.status_code == status
    texts = {400: "m", 503: "No answer now: m"}
    assert answer.text == texts.get(status, answer.text)
