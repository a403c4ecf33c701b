"""The requests of KoboldAI Lite's page, in its order, from a page of another origin."""

import json

import pytest

from tests.app.conftest import frames, listed, wait_until_empty
from tests.app.refused import error_of
from tests.scripted import ScriptedBackend, count, ticking

PAGE = "https://lite.koboldai.net"
GENERATE, STREAM = "/api/v1/generate", "/api/extra/generate/stream"
ABORT = "/api/extra/abort"

# With the settings that the page begins with, for a KoboldCpp of the version that is told.
DEFAULTS = {
    **{"n": 1, "max_context_length": 1800, "max_length": 200, "rep_pen": 1.07, "temperature": 0.7},
    **{"top_p": 0.92, "top_k": 100, "top_a": 0, "typical": 1, "tfs": 1, "rep_pen_range": 360},
    **{"rep_pen_slope": 0.7, "sampler_order": [6, 0, 1, 3, 4, 2, 5], "genkey": "KCPP1234"},
    **{"min_p": 0, "dynatemp_range": 0, "dynatemp_exponent": 1, "smoothing_factor": 0},
    **{"banned_tokens": [], "render_special": False, "presence_penalty": 0, "logit_bias": {}},
    "quiet": True,
}
INSTRUCT = {
    **DEFAULTS,
    "prompt": "\n### Instruction:\nHello!\n### Response:\n",
    "stop_sequence": ["### Instruction:", "### Response:", "\n### "],
    "use_default_badwordsids": False,
}
STORY = {**DEFAULTS, "prompt": "Once upon a", "stop_sequence": [], "use_default_badwordsids": True}
JSON = {"Content-Type": "application/json"}
KEYS = {"Authorization": "Bearer none", "x-api-key": "none"}  # of connections that need some
CLAUDE = {
    **JSON,
    **KEYS,
    "anthropic-version": "2023-06-01",
    "anthropic-dangerous-direct-browser-access": "true",
}


class Page:
    """Sends as a browser does for a page of another origin: it asks first, and looks whether the
    page may read the answer.
    """

    def __init__(self, client):
        self.client = client
        self.backend = client.backend

    def get(self, path, headers=JSON):
        return self._send("GET", path, headers)

    def post(self, path, body, headers=JSON):
        return self._send("POST", path, headers, data=json.dumps(body))

    def _send(self, method, path, headers, **more):
        asked = sorted(name.lower() for name in headers)
        first = {
            "Origin": PAGE,
            "Access-Control-Request-Method": method,
            "Access-Control-Request-Headers": ",".join(asked),
        }
        allowed = self.client.options(path, headers=first)
        assert allowed.status_code == 200
        assert allowed.headers["Access-Control-Allow-Origin"] == PAGE
        assert allowed.headers["Access-Control-Allow-Headers"].split(",") == asked
        assert method in allowed.headers["Access-Control-Allow-Methods"].split(", ")
        answer = self.client.open(path, method=method, headers={"Origin": PAGE, **headers}, **more)
        assert answer.headers["Access-Control-Allow-Origin"] == PAGE
        return answer


@pytest.fixture
def open_page(make_client):
    return lambda script=count: Page(make_client(ScriptedBackend(script), cors_origins=[PAGE]))


@pytest.fixture
def page(open_page):
    return open_page()


def test_it_connects(page):
    told = ("/api/v1/model", "/api/v1/info/version", "/api/v1/config/max_context_length")
    for path in (*told, "/api/extra/version", "/api/extra/true_max_context_length"):
        assert page.get(path).status_code == 200
    for path in ("/api/extra/preloadstory", "/sdapi/v1/sd-models", "/api/extra/perf"):
        assert page.client.get(path, headers={"Origin": PAGE}).status_code == 404  # which it takes


def test_an_instruction_is_answered_and_ends_by_itself(page):
    [result] = page.post(GENERATE, {**INSTRUCT, "max_length": 3}).json["results"]
    assert (result["text"], result["finish_reason"]) == ("0 1 2 ", "length")
    [job] = page.backend.enqueued
    assert not job.ignore_eos and job.stop_strings == tuple(INSTRUCT["stop_sequence"])
    assert job.sampling.temperature_last and job.sampling.top_k == 100


GRAMMAR = {"grammar": 'root ::= "yes" | "no"', "grammar_retain_state": False}


@pytest.mark.parametrize(
    ("path", "more", "goes_on"),
    [
        (GENERATE, {"max_length": 3}, True),
        (STREAM, {"max_length": 3}, True),
        (GENERATE, GRAMMAR, False),
        # Later versions of it say that the end is not passed over beside.
        (GENERATE, {"bypass_eos": False, "memory": "", "trim_stop": True}, True),
    ],
    ids=["whole", "stream", "grammar", "later"],
)
def test_a_story_goes_on_to_its_limit_or_to_the_end_of_its_grammar(page, path, more, goes_on):
    response = page.post(path, {**STORY, **more})
    assert response.status_code == 200, response.json
    [job] = page.backend.enqueued
    assert (job.ignore_eos, job.constraint is not None) == (goes_on, not goes_on)


@pytest.mark.parametrize("path", [GENERATE, STREAM])
def test_a_seed_is_text_once_its_settings_are_saved(page, path):
    for seed in (42, "42", "-2", "-1"):
        assert page.post(path, {**STORY, "sampler_seed": seed}).status_code == 200
    for seed in ("4 2", "", "4.2", "9" * 5000):
        error = error_of(page.post(path, {**STORY, "sampler_seed": seed}))
        assert error["param"] == "sampler_seed"
    assert [job.sampling.seed for job in page.backend.enqueued] == [42, 42, -2, None]


@pytest.mark.parametrize("tag", ["{{[INPUT]}}", "{{[OUTPUT_END]}}"])
def test_tags_that_it_leaves_to_the_server_are_refused(page, tag):
    body = {**STORY, "prompt": f"\n{tag}\nHello!", "replace_instruct_placeholders": True}
    error = error_of(page.post(GENERATE, body))
    assert error["param"] == "replace_instruct_placeholders"
    assert tag in error["message"] and not page.backend.enqueued
    assert page.post(GENERATE, {**body, "prompt": "Hello!"}).status_code == 200
    assert page.post(GENERATE, {**body, "replace_instruct_placeholders": False}).status_code == 200


def test_it_stops(open_page, ask):
    page = open_page(ticking)
    answers = ask(page.client, {**STORY, "max_length": 1500}, GENERATE, headers={"Origin": PAGE})
    listed(page.client, 1)
    assert page.post(ABORT, {"genkey": STORY["genkey"]}).json == {"success": True}
    [result] = answers.get(timeout=20).json["results"]
    assert result["finish_reason"] == "cancelled"
    wait_until_empty(page.client)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": STORY["prompt"]}]}),
        ("/v1/completions", {"prompt": STORY["prompt"], "stop": []}),
    ],
)
def test_its_connection_to_openais_api(page, path, more, stream):
    [model] = page.get("/v1/models", KEYS).json["data"]
    body = {"max_tokens": 2, "model": model["id"], "temperature": 0.7, "top_p": 0.92, **more}
    body["presence_penalty"] = 0.07000000000000006
    response = page.post(path, {**body, "stream": stream}, {**JSON, **KEYS})
    assert response.status_code == 200
    choices = frames(response) if stream else [response.json]
    texts = [
        choice.get("text") or (choice.get("delta") or choice.get("message") or {}).get("content")
        for body in choices
        for choice in body["choices"]
    ]
    assert "".join(text or "" for text in texts) == "0 1 "


def test_its_connection_to_anthropics_api(page):
    [model] = page.get("/v1/models", CLAUDE).json["data"]
    messages = [{"role": "user", "content": INSTRUCT["prompt"]}]
    body = {"model": model["id"], "messages": messages, "max_tokens": 2}
    body |= {"temperature": 0.75, "top_k": 100, "top_p": 0.92}
    response = page.post("/v1/messages", body, CLAUDE)
    assert [part["text"] for part in response.json["content"]] == ["0 1 "]
