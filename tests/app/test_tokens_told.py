"""`return_token_ids`: the tokens of prompt and text, by vLLM's names."""

import pytest

from switchyard.engine.messages import Chunk, Started
from tests.app.conftest import frames
from tests.scripted import ScriptedBackend, finished

TEXT = {"prompt": [[5, 6], [7]], "n": 2}
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "n": 2}
SAID = [("a", (11,)), ("", (12, 13)), ("b", (14,)), ("", (15,))]  # some text is held back


def saying(job):
    yield Started(job.identifier)
    for text, token_ids in SAID:
        yield Chunk(job.identifier, text, token_ids)
    yield finished(job, 5, "stop")


def joined(bodies):
    """By choice: all its tokens, and the prompts that are told with it."""
    told = {}
    for body in bodies:
        for choice in body["choices"]:
            tokens, prompts = told.setdefault(choice["index"], ([], []))
            tokens += choice.get("token_ids", [])
            prompts += [p for of in (body, choice) if (p := of.get("prompt_token_ids"))]
    return told


@pytest.mark.both_ways
@pytest.mark.parameter("return_token_ids")
@pytest.mark.parametrize(("url", "body"), [("completions", TEXT), ("chat/completions", CHAT)])
def test_each_token_of_prompt_and_text_is_told(make_client, url, body):
    backend = ScriptedBackend(saying)
    client = make_client(backend)
    body = {**body, "return_token_ids": True, "stream_options": {"include_usage": True}}
    streamed = client.post(f"/v1/{url}", json={**body, "stream": True})
    prompts = [list(job.prompt) for job in sorted(backend.enqueued, key=lambda j: j.identifier)]
    expected = {i: ([11, 12, 13, 14, 15], [prompt]) for i, prompt in enumerate(prompts)}
    assert joined(frames(streamed)) == expected
    whole = client.post(f"/v1/{url}", json=body).json
    assert [ids for ids, _ in joined([whole]).values()] == [[11, 12, 13, 14, 15]] * len(prompts)
    told = [whole.get("prompt_token_ids") or c["prompt_token_ids"] for c in whole["choices"]]
    assert told == prompts


def test_tokens_are_not_told_unasked(client):
    assert "token_ids" not in client.post("/v1/completions", json=TEXT).text
