"""Random schemas and patterns at a high temperature: what ends by itself is as it was asked for."""

import json
import re
from collections import Counter

import jsonschema
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from switchyard import engine
from switchyard.engine.grammar import constraints
from switchyard.engine.grammar.grammars import Grammars
from switchyard.engine.model.model_dir import ModelDir
from switchyard.engine.model.tokenizer import Tokenizer
from switchyard.engine.sampling import Sampling
from tests.conftest import DEMO
from tests.engine.forced import ending, run
from tests.engine.random_forms import regexes, schemas
from tests.scripted import job

MAX_NEW_TOKENS = 500


@pytest.fixture(scope="module")
def grammars():
    return Grammars(Tokenizer(ModelDir.read(DEMO)))


def draw(strategy, number):
    """That many examples, different ones."""
    found = {}

    @settings(
        max_examples=number,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(example):
        found.setdefault(json.dumps(example), example)

    collect()
    return list(found.values())


def complete(backend, grammars, forms):
    """[(form, text, finish_reason)] of a completion for each that isn't refused; why others are."""
    jobs, refused = {}, Counter()
    for i, (form, make) in enumerate(forms):
        try:
            constraint = make(form)
            grammars.matcher(constraint.grammar)
        except engine.InvalidJob as error:
            refused["unsatisfiable" if "nsatisfiable" in str(error) else str(error)[:100]] += 1
            continue
        # The penalty, so that a small model in doubt doesn't write one digit forever.
        sampling = Sampling(temperature=1.5, frequency_penalty=1.0, seed=i)
        more = {"prompt": (1, 300), "sampling": sampling, "constraint": constraint}
        jobs[str(i)] = job(str(i), MAX_NEW_TOKENS, **more)
    events = run(backend, *jobs.values(), limit=1_000_000)
    results = []
    for identifier, told in events.items():
        form, end = forms[int(identifier)][0], ending(told)
        assert isinstance(end.last, engine.Finished), (form, end.last)
        results.append((form, end.text, end.last.finish_reason))
    return results, refused


def test_random_schemas(opened, grammars, request):
    drawn = draw(schemas(), request.config.getoption("--schemas"))
    forms = [(schema, constraints.json_schema) for schema in drawn]
    results, refused = complete(opened(DEMO), grammars, forms)
    ended = [(schema, text) for schema, text, reason in results if reason == "stop"]
    for schema, text in ended:
        checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
        validator = jsonschema.Draft202012Validator(schema, format_checker=checker)
        assert validator.is_valid(json.loads(text)), (json.dumps(schema), text)
    print(f"{len(drawn)} schemas, {len(results)} honoured, {len(ended)} ended by themselves")
    print(*refused.most_common(), sep="\n")
    num_unsupported = refused.total() - refused["unsatisfiable"]
    assert num_unsupported < 0.1 * len(drawn)
    # What doesn't end is alive: where a schema admits any name, a hot model of stories writes
    # stories in names, too.
    assert len(ended) > 0.7 * len(results)


def test_random_regular_expressions(opened, grammars, request):
    drawn = draw(regexes(), request.config.getoption("--schemas") // 5)
    forms = [(pattern, constraints.regex) for pattern in drawn]
    results, refused = complete(opened(DEMO), grammars, forms)
    ended = [(pattern, text) for pattern, text, reason in results if reason == "stop"]
    for pattern, text in ended:
        assert re.fullmatch(pattern, text, re.ASCII), (pattern, text)
    print(f"{len(drawn)} patterns, {len(results)} honoured, {len(ended)} ended by themselves")
    assert not refused
    assert len(ended) > 0.85 * len(results)
