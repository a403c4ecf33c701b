"""What each route that generates does, by its contract: a new format's join by themselves."""

import time
import typing

import pytest

from switchyard import engine
from switchyard.app.openapi import contract
from tests.app.conftest import fails
from tests.scripted import ScriptedBackend, says

# Of a name that isn't served: its clients call the model what they like; they may not get it here.
OTHER_NAME = {"/completion": 200, "/api/pull": 501}
LIMITS = {"max_tokens", "max_output_tokens", "max_length", "n_predict", "num_predict"}
CHANGING = ("admin", "operator")  # roles of routes that load and end things
GAPS = "/infill"  # needs a model with tokens for a gap


def declared(client):
    """Method, path, example and contract of routes that take input, and whether they say that they
    submit jobs.
    """
    app = client.application
    for rule, own in contract.declared(app):
        if own.example is not None and own.who not in CHANGING and rule.rule != GAPS:
            [method] = rule.methods - {"HEAD", "OPTIONS"}
            view = app.view_functions[rule.endpoint]
            says_so = getattr(view, contract.GENERATES) and 204 in own.answers
            yield method, rule.rule, dict(own.example), own, says_so


def fields(own):
    """The names of its parameters."""
    kind = own.body or own.query
    return {name for one in typing.get_args(kind) or [kind] for name in one.model_fields}


def generating(client):
    """Method, path, body, and the media type of a stream: None for a whole answer."""
    for method, path, example, own, says_so in declared(client):
        if says_so and own.answers.get(200) is not None:
            yield method, path, example, None
        more = {"stream": True} if "stream" in fields(own) else {}
        for media_type in own.streams if says_so else ():
            yield method, path, {**example, **more}, media_type


def ask(client, method, path, body, media_type=None, **headers):
    if media_type is not None:
        headers["Accept"] = media_type
    if method == "GET":
        query = {k: "true" if value is True else str(value) for k, value in body.items()}
        return client.get(path, query_string=query, headers=headers)
    return client.open(path, method=method, json=body, headers=headers)


def test_a_route_that_submits_jobs_says_so(client):
    """Else keys' limits and the ledger miss its refusals, and it can't be repeated or resumed."""
    jobs = client.backend.enqueued
    for method, path, example, _, says_so in declared(client):
        before = len(jobs)
        assert ask(client, method, path, example).status_code == 200, path
        assert (len(jobs) > before) == says_so, path


def test_a_repetition_gets_the_same_answer_from_the_same_job(client):
    jobs = client.backend.enqueued
    for i, asked in enumerate(generating(client)):
        path, before = asked[1], len(jobs)
        key = {"Idempotency-Key": f"k-{i}"}
        first, second = (ask(client, *asked, **key) for _ in range(2))
        assert first.status_code == second.status_code == 200, (path, first.text)
        assert (first.data, first.content_type) == (second.data, second.content_type), path
        assert len(jobs) == before + 1, path
        assert ask(client, *asked, **{"Idempotency-Key": f"l-{i}"}).data
        assert len(jobs) == before + 2, path


def test_streams_come_as_the_media_type_that_is_asked_for(client):
    for *asked, media_type in generating(client):
        response = ask(client, *asked, media_type)
        assert response.mimetype == (media_type or "application/json"), asked


SLOW = engine.ConstraintTooSlow("no luck", "constraint")
# What its error is called; by Ollama's it has no name.
TOO_SLOW = {"/v1/messages": "invalid_request_error", "/v1/responses": "invalid_prompt"}
TOO_SLOW |= dict.fromkeys(("/api/chat", "/api/generate"), "no luck")


@pytest.mark.parametrize("texts", [[], ["Once"]], ids=["at once", "behind text"])
@pytest.mark.parametrize(("error", "status"), [(None, 500), (SLOW, 400)])
def test_a_failure_has_its_status_or_is_told_in_the_stream_behind_text(
    make_client, texts, error, status
):
    client = make_client(ScriptedBackend(fails(*texts, error=error)))
    for method, path, body, media_type in generating(client):
        response = ask(client, method, path, body, media_type)
        code = TOO_SLOW.get(path, "constraint_too_slow") if error else "no luck"
        if media_type is None or not texts:
            assert response.status_code == status and "no luck" in response.text, path
            assert code == "invalid_prompt" or code in response.text, path  # as it begins
        elif media_type != "text/plain":  # which breaks off
            assert response.status_code == 200 and "Once" in response.text, path
            assert "no luck" in response.text and code in response.text, path


def prompt_without_end(job):
    yield engine.Started(job.identifier)
    while True:
        time.sleep(0.001)
        yield engine.Prefill(job.identifier, 0, 1, 0)


@pytest.mark.parametrize("setting", ["queue_timeout", "first_token_timeout"])
def test_what_only_waited_has_the_status_of_its_deadline(make_client, gate, setting):
    is_queued = setting == "queue_timeout"
    backend = ScriptedBackend(gate=gate) if is_queued else ScriptedBackend(prompt_without_end)
    client = make_client(backend, **{setting: 0.05})
    for asked in generating(client):
        assert ask(client, *asked).status_code == 408, asked


@pytest.mark.parametrize("unknown", ["refuse", "ignore"])
def test_no_parameter_is_dropped_silently(make_client, unknown):
    client = make_client(unknown_parameters=unknown)
    for method, path, example, _, _ in declared(client):
        response = ask(client, method, path, {**example, "no_such_parameter": 1})
        if unknown == "ignore":
            assert response.status_code == 200, path
            assert response.headers["X-Switchyard-Ignored"] == "no_such_parameter", path
        else:
            assert response.status_code == 400 and "no_such_parameter" in response.text, path


def test_each_route_with_a_model_takes_an_alias(make_client):
    client = make_client(model_aliases={"claude-*": "scripted"})
    asked = 0
    for method, path, example, own, _ in declared(client):
        if "model" in fields(own):
            response = ask(client, method, path, {**example, "model": "claude-opus-5"})
            assert response.status_code == 200, (path, response.text)
            told = response.get_json(silent=True) or {}  # a stream is none
            assert told.get("model", "scripted") == "scripted", path
            status = OTHER_NAME.get(path, 404)
            assert ask(client, method, path, {**example, "model": "other"}).status_code == status
            asked += 1
    assert asked > 10


def test_a_limit_of_tokens_beyond_the_context_is_cut_and_told_or_refused(make_client):
    client, strict = make_client(), make_client(clamp_max_tokens=False)
    for method, path, body, media_type in generating(client):
        [name] = LIMITS & body.keys()  # the example has its format's word
        response = ask(client, method, path, {**body, name: 32_000}, media_type)
        assert response.status_code == 200, (path, response.text)
        assert response.headers["X-Switchyard-Ignored"] == name, path
        job = client.backend.enqueued[-1]
        assert len(job.prompt) + job.max_new_tokens == 2048, path
        refused = ask(strict, method, path, {**body, name: 32_000}, media_type)
        assert refused.status_code == 400 and "32000" in refused.text, path


def test_timings_are_told_or_refused(client):
    paths = set()
    for method, path, body, media_type in generating(client):
        response = ask(client, method, path, {**body, "timings": True}, media_type)
        if response.status_code == 400:
            assert response.json["error"]["message"].count("timings") == 1, path
        elif media_type != "text/plain":
            assert response.status_code == 200 and '"timings"' in response.text, path
            paths.add(path)
    assert len(paths) > 3


SEPARATORS = "\x85\u2028\u2029"  # characters that end a line for some clients


def test_json_never_has_a_raw_line_separator(make_client):
    client = make_client(ScriptedBackend(says(*3 * [f"ä{SEPARATORS}b"])))
    for method, path, body, media_type in generating(client):
        if media_type != "text/plain":
            text = ask(client, method, path, body, media_type).get_data(as_text=True)
            assert not set(SEPARATORS) & set(text), path
            assert text.count("\\u2028") >= 3, path
