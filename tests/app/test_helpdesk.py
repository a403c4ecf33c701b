"""The error handlers of examples/helpdesk."""

import importlib.util

import pytest

from switchyard import engine
from switchyard.app import BadRequest, ClientGone, TimedOut
from switchyard.app.exceptions import Unauthorized
from switchyard.testing import fake
from tests.conftest import ROOT

HELPDESK = ROOT / "examples" / "helpdesk" / "helpdesk.py"
REASON = "the reason"
ERRORS = [
    *((kind(REASON), 400) for kind in (BadRequest, engine.PromptTooLong, engine.InvalidJob)),
    *((kind(REASON), 503) for kind in (engine.ModelNotFound, engine.Dead, engine.JobFailed)),
    *((engine.Full(REASON, 7.0), 503), (engine.Closed(REASON), 503)),
    *((TimedOut(REASON, "x_timeout"), 503), (ClientGone(), 499), (Unauthorized(), 503)),
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
