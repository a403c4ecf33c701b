"""Requests as programs send them that people use most: each is served, and told what asks for
nothing. `bodies/` has them, with the prompt that the chat template makes of each.
"""

import json
import pathlib

import pytest

from switchyard.engine.messages import ModelInfo
from tests.scripted import ScriptedBackend, says

BODIES = pathlib.Path(__file__).parent / "bodies"
ANSWER = ("Hello", " there", ".")


def text_of(response):
    """The answer's, whatever the wire format."""
    if response.mimetype != "text/event-stream":
        body = response.json
        [answer] = body.get("choices") or body.get("results") or [{"text": body.get("content")}]
        return answer.get("text") or answer["message"]["content"]
    bodies = [
        json.loads(line.removeprefix("data: "))
        for line in response.text.splitlines()
        if line.startswith("data: {")
    ]
    deltas = [body["delta"] for body in bodies if str(body.get("type")).endswith("delta")]
    return "".join(d if isinstance(d, str) else d.get("text", "") for d in deltas)


@pytest.mark.parametrize("path", sorted(BODIES.glob("*.json")), ids=lambda path: path.stem)
def test_a_clients_request_is_served(make_client, path):
    recorded = json.loads(path.read_text())
    info = ModelInfo(65_536, 4096, 256, 4096, "scripted")
    client = make_client(ScriptedBackend(says(*ANSWER), info=info))
    body = recorded["body"]
    body |= {"model": "scripted"} if "model" in body else {}
    response = client.post(recorded["path"], json=body, headers=recorded["headers"])
    assert response.status_code == 200, response.text
    assert text_of(response) == "".join(ANSWER)
    [job] = client.backend.enqueued
    assert client.models.get().tokenizer.decode(job.prompt, False) == recorded["prompt"]
    told = response.headers.get("X-Switchyard-Ignored")
    assert sorted(told.split(",") if told else []) == recorded["ignored"]
