"""Parameters under the names of other servers."""

import collections
import re
from pathlib import Path

import pytest

from switchyard.app.chat.request import Chat
from switchyard.app.formats.anthropic.parse import MessageRequest
from switchyard.app.formats.openai.parse import Completion
from switchyard.app.formats.responses.parse import ResponseRequest
from tests.app.refused import error_of

MESSAGES = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
INPUT = {"input": "x", "max_output_tokens": 1}


@pytest.mark.parametrize("url", ["/v1/completions", "/completion", "/api/v1/generate"])
def test_a_parameter_may_stand_under_several_names(client, url):
    body = {"prompt": "x", "rep_pen": 1.2, "repetition_penalty": 1.2, "repeat_penalty": 1.2}
    body |= {"n_predict": 3, "num_predict": 3, "stopping_strings": ["y"], "seed": -1}
    response = client.post(url, json={**body, "sampler_seed": -1, "tfs_z": 0.5, "typical": 0.5})
    assert response.status_code == 200 and "X-Switchyard-Ignored" not in response.headers
    [job] = client.backend.enqueued
    sampling = job.sampling
    assert (job.max_new_tokens, job.stop_strings, sampling.seed) == (3, ("y",), None)
    assert (sampling.repetition_penalty, sampling.tfs, sampling.typical_p) == (1.2, 0.5, 0.5)
    error_of(client.post(url, json={**body, "repeat_penalty": 1.1}))
    assert "repeat_penalty and rep_pen" in client.post(url, json={**body, "rep_pen": 1}).text
    for name, wrong, param in (
        ("num_predict", True, "num_predict"),
        ("stopping_strings", ["a", ""], "stopping_strings.1"),
        ("ban_eos_token", 1, "ban_eos_token"),
    ):
        error = error_of(client.post(url, json={"prompt": "x", "n_predict": 1, name: wrong}))
        assert error["param"] == param


CHATS = ["/v1/chat/completions", "/v1/messages"]
TEXTS = ["/v1/completions", "/generate", "/completion", "/api/v1/generate"]
EVERYWHERE = [*CHATS, *TEXTS, "/v1/responses", "/api/chat", "/api/generate"]


def least(url):
    if url in TEXTS or url == "/api/generate":
        return {"prompt": "x"}
    return INPUT if "responses" in url else MESSAGES


# What clients of other servers send, and the field of the engine's sampling that it sets. Written
# from the parameter lists of Open WebUI 0.12, TabbyAPI, vLLM and SGLang, November 2026.
SENT = {
    "repeat_penalty": (1.3, "repetition_penalty", 1.3),
    "rep_pen": (1.3, "repetition_penalty", 1.3),
    "mirostat": (0, "mirostat", False),
    "tfs_z": (0.5, "tfs", 0.5),
    "typical": (0.5, "typical_p", 0.5),
    "banned_tokens": ([7], "banned_token_ids", (7,)),
    "custom_token_bans": ("7, 8", "banned_token_ids", (7, 8)),
    "allowed_tokens": ([7], "allowed_token_ids", (7,)),
}


@pytest.mark.parameter("custom_token_bans")
@pytest.mark.parametrize("url", EVERYWHERE)
def test_the_names_of_other_servers_are_known_on_every_route(client, url):
    for name, (value, field, expected) in SENT.items():
        response = client.post(url, json={**least(url), name: value})
        assert response.status_code == 200, (name, response.text)
        assert "X-Switchyard-Ignored" not in response.headers, name
        assert getattr(client.backend.enqueued[-1].sampling, field) == expected, name


@pytest.mark.parametrize("url", EVERYWHERE)
def test_other_names_of_what_a_job_has_are_known_on_every_route(client, url):
    body = {name: value for name, value in least(url).items() if not name.startswith("max_")}
    body |= {"max_tokens": 9, "stop_sequence": ["y"], "min_length": 2, "ban_eos_token": True}
    body |= {"min_temp": 0.5, "max_temp": 1.5, "temp_exponent": 2, "dry_multiplier": 1}
    body |= {"dry_penalty_last_n": 64, "bad_words": ["z"]}
    body |= {"max_length": 9} if url != "/v1/messages" else {}
    if url not in ("/completion", "/api/v1/generate"):  # their own samplers are off there
        body |= {"penalty_range": 64, "repeat_last_n": 64, "repetition_range": 64}
    response = client.post(url, json=body)
    assert response.status_code == 200, response.text
    [job] = client.backend.enqueued
    sampling = job.sampling
    assert (job.max_new_tokens, job.stop_strings, job.min_new_tokens) == (9, ("y",), 2)
    assert job.ignore_eos and sampling.banned_strings and sampling.dry_range == 64
    assert sampling.dynatemp_high == 1.5


@pytest.mark.parametrize("url", EVERYWHERE)
def test_a_window_of_no_tokens_is_off_by_one_name_and_all_by_others(client, url):
    for name in ("repeat_last_n", "rep_pen_range", "repetition_range"):
        body = {**least(url), "rep_pen": 1.3, name: 0}
        assert client.post(url, json=body).status_code == 200, name
    off, *others = (job.sampling for job in client.backend.enqueued)
    assert off.repetition_penalty == 1
    assert {(one.repetition_penalty, one.repetition_range) for one in others} == {(1.3, -1)}


@pytest.mark.parametrize("url", EVERYWHERE)
@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({"rep_pen": 1.2, "repeat_penalty": 1.3}, ["rep_pen", "repeat_penalty"]),
        ({"tfs": 0.5, "tfs_z": 0.6}, ["tfs", "tfs_z"]),
        ({"banned_tokens": [7], "banned_token_ids": [8]}, ["banned_tokens", "banned_token_ids"]),
        ({"stop_sequence": ["x"], "stop": ["y"]}, ["stop_sequence", "stop"]),
        ({"response_prefix": "y"}, ["response_prefix"]),
        ({"loop_detect_window": 9}, ["loop_detect_window"]),
        ({"mirostat": 1}, ["mirostat"]),
        ({"custom_token_bans": "7,a"}, ["custom_token_bans"]),
    ],
    ids=str,
)
def test_what_differs_or_asks_for_something_is_refused_by_its_names(client, url, body, names):
    response = client.post(url, json={**least(url), **body})
    assert response.status_code == 400
    assert all(name in response.text for name in names), response.text


@pytest.mark.parametrize("url", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"cfg_scale": 1, "negative_prompt": "bad"}, "negative_prompt"),
    ],
)
def test_what_has_no_effect_beside_another_parameter_is_told(client, url, body, told):
    response = client.post(url, json={**least(url), **body})
    assert response.status_code == 200, response.text
    assert response.headers["X-Switchyard-Ignored"] == told
    assert client.backend.enqueued[0].negative_prompt == ()


def test_names_of_chats_are_known(client):
    """Whether the model has thoughts, or switches, is another question."""
    given = {"think": False, "enable_thinking": False, "template_vars": {}}
    response = client.post(CHATS[0], json={**MESSAGES, **given})
    assert response.status_code == 200, response.text
    for name in ("reasoning_budget_tokens", "thinking_budget", "thinking_token_budget"):
        response = client.post(CHATS[0], json={**MESSAGES, "reasoning_budget": 5, name: 6})
        assert name in response.json["error"]["message"] and response.status_code == 400


def test_the_documentation_has_all_other_names():
    page = (Path(__file__).parents[2] / "docs" / "parameters.md").read_text()
    listed = dict(re.findall(r"^\| `(\w+)` \| ((?:`\w+`(?:, )?)+) \|$", page, re.MULTILINE))
    names = collections.defaultdict(set)
    for kind in (Completion, Chat, MessageRequest, ResponseRequest):
        for name, own in kind.other_names().items():
            names[own].add(name)
    assert {own: set(re.findall(r"\w+", others)) for own, others in listed.items()} == names
