"""Panics of libraries written in Rust are errors of what they were called for."""

import flask
import pytest
import tokenizers

from switchyard import engine
from switchyard.app.exceptions import BadRequest
from switchyard.app.http import body
from switchyard.app.request import validation
from switchyard.engine.grammar import constraints
from switchyard.engine.grammar.grammars import Grammars
from switchyard.engine.messages import Failed
from switchyard.engine.model.model_dir import ModelDir
from switchyard.engine.model.tokenizer import Tokenizer
from switchyard.engine.panics import panics_as
from tests.conftest import DEMO
from tests.engine.forced import ending, run
from tests.scripted import job


def panic(*args, **more):
    """A real one: a regular expression goes back too often."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex("(a|aa)+b"), "isolated")
    tokenizer.pre_tokenizer = split
    tokenizer.encode("a" * 2000)


def test_a_grammar_on_which_the_compiler_panics_is_refused(monkeypatch):
    grammars = Grammars(Tokenizer(ModelDir.read(DEMO)))
    monkeypatch.setattr("switchyard.engine.grammar.grammars.LLMatcher", panic)
    with pytest.raises(engine.InvalidJob, match="too large") as raised:
        grammars.matcher(constraints.json_object().grammar)
    assert raised.value.param == "constraint"


@pytest.mark.parametrize("method", ["compute_bitmask", "consume_token"])
def test_a_constraint_that_panics_ends_its_job_alone(opened, monkeypatch, method):
    backend = opened(DEMO)
    forms = {"bad": constraints.regex("[0-9]{5}"), "good": constraints.regex("(ab){3}")}
    make = backend._grammars.matcher

    class Panicking:
        def __init__(self, matcher):
            self._matcher = matcher

        def __getattr__(self, name):
            return panic if name == method else getattr(self._matcher, name)

    def matcher(grammar):
        return Panicking(make(grammar)) if grammar == forms["bad"].grammar else make(grammar)

    monkeypatch.setattr(backend._grammars, "matcher", matcher)
    jobs = [job(name, 20, prompt=(1, 300), constraint=form) for name, form in forms.items()]
    events = run(backend, *jobs)
    assert isinstance(events["bad"][-1], Failed)
    assert isinstance(events["bad"][-1].error, engine.InvalidJob)
    assert ending(events["good"]).text == "ababab"


def test_a_body_on_which_pydantic_panics_is_refused(monkeypatch):
    class Panicking(validation.Parameters):
        model_validate = panic

    with pytest.raises(BadRequest, match="can't be read"):
        validation.validate(Panicking, {})
    monkeypatch.setattr("pydantic_core.from_json", panic)
    app = flask.Flask("test")
    told = pytest.raises(BadRequest, match="not valid JSON")
    with app.test_request_context(json={}, method="POST"), told:
        body.parse_json(b"{}")


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_is_no_panic(kind):
    with pytest.raises(kind), panics_as(BadRequest, "can't be read"):
        raise kind
