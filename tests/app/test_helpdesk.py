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
    *(
        (BadRequest("the reason"), 400),
        (engine.PromptTooLong("the reason"), 400),
        (engine.InvalidJob("the reason"), 400),
    ),
    *(
        (engine.ModelNotFound("the reason"), 503),
        (engine.Full("the reason", 7.0), 503),
        (engine.Dead("the reason"), 503),
    ),
    *(
        (engine.JobFailed("the reason"), 503),
        (engine.Closed("the reason"), 503),
        (TimedOut("the reason", "x_timeout"), 503),
    ),
    *((ClientGone(), 499), (Unauthorized(), 503)),
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
def test_its_handlers_take_what_the_docs_say(user, caplog, path, error, status):
    user.answers["why"] = error
    answer = user.post(path, data={"question": "why"}, headers={"Accept": "text/plain"})
    assert answer.status_code == status
    if status != 499:  # nobody reads that
        assert answer.text.startswith(("This question can't be", "There is no answer now."))
        assert not str(error) or str(error) in caplog.text
