"""The requests of KoboldAI Lite's page, in its order, from a page of another origin."""

import json

import pytest

from tests.app.conftest import frames, listed, wait_until_empty
from tests.scripted import ScriptedBackend, ticking

PAGE = "https://lite.koboldai.net"
GENERATE, STREAM = "/api/v1/generate", "/api/extra/generate/stream"
ABORT, COUNT = "/api/extra/abort", "/api/extra/tokencount"

# With the settings that the page begins with, for a KoboldCpp of the version that is told.
DEFAULTS = {
    "n": 1,
    "max_context_length": 1800,
    "max_length": 200,
    "rep_pen": 1.07,
    "temperature": 0.7,
    "top_p": 0.92,
    "top_k": 100,
    "top_a": 0,
    "typical": 1,
    "tfs": 1,
    "rep_pen_range": 360,
    "rep_pen_slope": 0.7,
    "sampler_order": [6, 0, 1, 3, 4, 2, 5],
    "genkey": "KCPP1234",
    "min_p": 0,
    "dynatemp_range": 0,
    "dynatemp_exponent": 1,
    "smoothing_factor": 0,
    "banned_tokens": [],
    "render_special": False,
    "presence_penalty": 0,
    "logit_bias": {},
    "quiet": True,
}
INSTRUCT = {
    **DEFAULTS,
    "prompt": "\n### Instruction:\nHello!\n### Response:\n",
    "stop_sequence": ["### Instruction:", "### Response:", "\n### "],
    "use_default_badwordsids": False,
}
STORY = {
    **DEFAULTS,
    "prompt": "Once upon a time",
    "stop_sequence": [],
    "use_default_badwordsids": True,
}


class Page:
    """Sends as a browser does for a page of another origin: it asks first, and looks whether the
    page may read the answer.
    """

    def __init__(self, client, key=None):
        self._client = client
        self._key = {"Authorization": f"Bearer {key}"} if key else {}

    def get(self, path):
        return self._send("GET", path, {"Content-Type": "application/json", **self._key})

    def post(self, path, body):
        headers = {"Content-Type": "application/json", **self._key}
        return self._send("POST", path, headers, data=json.dumps(body))

    def get_models(self):
        return self._send("GET", "/v1/models", self._keys)

    def complete(self, path, body):
        headers = {"Content-Type": "application/json", **self._keys}
        return self._send("POST", path, headers, data=json.dumps(body))

    def claude(self, method, path, **more):
        headers = {
            "Content-Type": "application/json",
            "anthropic-version": "2023-06-01",
            "anthropic-dangerous-direct-browser-access": "true",
            **self._keys,
        }
        return self._send(method, path, headers, **more)

    @property
    def _keys(self):
        """The key of its connection to OpenAI's API, which needs one."""
        key = self._key or {"Authorization": "Bearer none"}
        return {**key, "x-api-key": key["Authorization"].removeprefix("Bearer ")}

    def _send(self, method, path, headers, **more):
        asked = sorted(name.lower() for name in headers)
        first = {
            "Origin": PAGE,
            "Access-Control-Request-Method": method,
            "Access-Control-Request-Headers": ",".join(asked),
        }
        allowed = self._client.options(path, headers=first)
        assert allowed.status_code == 200
        assert allowed.headers["Access-Control-Allow-Origin"] == PAGE
        assert allowed.headers["Access-Control-Allow-Headers"].split(",") == asked
        assert method in allowed.headers["Access-Control-Allow-Methods"].split(", ")
        response = self._client.open(
            path, method=method, headers={"Origin": PAGE, **headers}, **more
        )
        assert response.headers["Access-Control-Allow-Origin"] == PAGE
        return response


@pytest.fixture
def open_page(make_client):
    def make(script=None, **settings):
        backend = ScriptedBackend(script) if script else ScriptedBackend()
        client = make_client(backend, cors_origins=[PAGE], **settings)
        return Page(client), backend, client

    return make


def test_it_connects(open_page):
    page, _, client = open_page()
    assert page.get("/api/v1/model").json == {"result": "scripted"}
    assert page.get("/api/v1/info/version").json == {"result": "1.2.5"}
    assert page.get("/api/v1/config/max_context_length").json == {"value": 2048}
    assert page.get("/api/extra/version").json["version"] == "1.48"
    assert page.get("/api/extra/true_max_context_length").json == {"value": 2048}
    for path in ("/api/extra/preloadstory", "/sdapi/v1/sd-models", "/api/extra/perf"):
        assert client.get(path, headers={"Origin": PAGE}).status_code == 404  # which it takes


def test_it_counts_tokens(open_page):
    page, _, _ = open_page()
    body = {"prompt": "Once upon a time", "special": False}
    counted = page.post(COUNT, body).json
    assert counted["value"] == len(counted["ids"]) > 0


def test_an_instruction_is_answered_and_ends_by_itself(open_page):
    page, backend, _ = open_page()
    [result] = page.post(GENERATE, {**INSTRUCT, "max_length": 3}).json["results"]
    assert (result["text"], result["finish_reason"]) == ("0 1 2 ", "length")
    [job] = backend.enqueued
    assert not job.ignore_eos and job.stop_strings == tuple(INSTRUCT["stop_sequence"])
    assert job.sampling.temperature_last and job.sampling.top_k == 100


@pytest.mark.parametrize("path", [GENERATE, STREAM])
def test_a_story_goes_on_to_its_limit(open_page, path):
    page, backend, _ = open_page()
    response = page.post(path, {**STORY, "max_length": 3})
    assert response.status_code == 200, response.json
    [job] = backend.enqueued
    assert job.ignore_eos


def test_a_story_with_a_grammar_ends_where_that_says(open_page):
    page, backend, _ = open_page()
    more = {"grammar": 'root ::= "yes" | "no"', "grammar_retain_state": False}
    assert page.post(GENERATE, {**STORY, **more}).status_code == 200
    [job] = backend.enqueued
    assert job.constraint is not None and not job.ignore_eos


def test_later_versions_of_it_say_that_the_end_is_not_passed_over_beside(open_page):
    page, backend, _ = open_page()
    more = {"bypass_eos": False, "memory": "", "trim_stop": True}
    assert page.post(GENERATE, {**STORY, **more}).status_code == 200
    [job] = backend.enqueued
    assert job.ignore_eos


@pytest.mark.parametrize("path", [GENERATE, STREAM])
def test_a_seed_is_text_once_its_settings_are_saved(open_page, path):
    page, backend, _ = open_page()
    for seed in (42, "42", "-2", "-1"):
        assert page.post(path, {**STORY, "sampler_seed": seed}).status_code == 200
    for seed in ("4 2", "", "4.2", "9" * 5000):
        response = page.post(path, {**STORY, "sampler_seed": seed})
        assert response.status_code == 400 and response.json["error"]["param"] == "sampler_seed"
    assert [job.sampling.seed for job in backend.enqueued] == [42, 42, -2, None]


@pytest.mark.parametrize("tag", ["{{[INPUT]}}", "{{[OUTPUT_END]}}"])
def test_tags_that_it_leaves_to_the_server_are_refused(open_page, tag):
    page, backend, _ = open_page()
    body = {**STORY, "prompt": f"\n{tag}\nHello!", "replace_instruct_placeholders": True}
    response = page.post(GENERATE, body)
    assert response.status_code == 400
    assert response.json["error"]["param"] == "replace_instruct_placeholders"
    assert tag in response.json["error"]["message"] and not backend.enqueued
    assert page.post(GENERATE, {**body, "prompt": "Hello!"}).status_code == 200
    assert page.post(GENERATE, {**body, "replace_instruct_placeholders": False}).status_code == 200


def test_it_streams(open_page):
    page, _, _ = open_page()
    response = page.post(STREAM, {**INSTRUCT, "max_length": 2})
    assert response.mimetype == "text/event-stream"
    told = []
    for block in response.text.split("\n\n")[:-1]:
        event, data = block.split("\n")
        assert event == "event: message"
        told.append(json.loads(data.removeprefix("data: ")))
    assert "".join(body["token"] for body in told) == "0 1 "
    assert [body["finish_reason"] for body in told] == [None, None, "length"]


def test_it_stops(open_page, ask):
    page, _, client = open_page(ticking)
    answers = ask(client, {**STORY, "max_length": 1500}, GENERATE, headers={"Origin": PAGE})
    listed(client, 1)
    assert page.post(ABORT, {"genkey": STORY["genkey"]}).json == {"success": True}
    [result] = answers.get(timeout=20).json["results"]
    assert result["finish_reason"] == "cancelled"
    wait_until_empty(client)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": STORY["prompt"]}]}),
        ("/v1/completions", {"prompt": STORY["prompt"], "stop": []}),
    ],
)
def test_its_connection_to_openais_api(open_page, path, more, stream):
    page, _, _ = open_page()
    [model] = page.get_models().json["data"]
    body = {
        "max_tokens": 2,
        "model": model["id"],
        "temperature": 0.7,
        "top_p": 0.92,
        "presence_penalty": 0.07000000000000006,
        **more,
    }
    response = page.complete(path, {**body, "stream": True} if stream else body)
    assert response.status_code == 200
    choices = frames(response) if stream else [response.json]
    texts = [
        choice.get("text") or (choice.get("delta") or choice.get("message") or {}).get("content")
        for body in choices
        for choice in body["choices"]
    ]
    assert "".join(text or "" for text in texts) == "0 1 "


def test_its_connection_to_anthropics_api(open_page):
    page, _, _ = open_page()
    [model] = page.claude("GET", "/v1/models").json["data"]
    body = {
        "model": model["id"],
        "messages": [{"role": "user", "content": INSTRUCT["prompt"]}],
        "max_tokens": 2,
        "temperature": 0.75,
        "top_k": 100,
        "top_p": 0.92,
    }
    response = page.claude("POST", "/v1/messages", data=json.dumps(body))
    assert [part["text"] for part in response.json["content"]] == ["0 1 "]
