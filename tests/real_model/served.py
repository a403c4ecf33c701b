"""A server of the real model, in this process: as Switchyard starts it, on its device."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from werkzeug.test import TestResponse

from switchyard import engine
from switchyard.app import Settings, create_app

MAX_TOKENS = 48


class Answer(NamedTuple):
    text: str
    token_ids: list[int]
    logprobs: list[float]
    margins: list[float]  # nats between the likeliest token and the next
    finish_reason: str


class Server:
    def __init__(self, path: str, **settings: object) -> None:
        read = Settings(model=path, name="real", **settings)
        self.engine = engine.open_engine(read.engine_config())
        self.models = engine.Models([self.engine])
        self.models.start()
        assert self.models.wait_until_loaded(300), self.engine.error
        self.client = create_app(read, self.models).test_client()

    def close(self) -> None:
        assert self.models.close(timeout=60)

    def post(self, path: str, body: dict) -> dict:
        response = self._send(path, body)
        assert response.status_code == 200, response.get_data(as_text=True)
        return response.json

    def _send(self, path: str, body: dict) -> TestResponse:
        """As it is: Flask's own `json` sorts the keys, and so a schema's properties."""
        headers = {"Content-Type": "application/json"}
        return self.client.post(path, data=json.dumps(body), headers=headers)

    def answer(self, messages: list[dict], **more: object) -> Answer:
        """Greedy, with tokens and logprobs."""
        asks = {"logprobs": True, "top_logprobs": 2, "return_tokens_as_token_ids": True}
        body = {"messages": messages, "temperature": 0, "max_tokens": MAX_TOKENS, **asks, **more}
        [choice] = self.post("/v1/chat/completions", body)["choices"]
        told = choice["logprobs"]["content"]
        return Answer(
            choice["message"]["content"],
            [int(token["token"].removeprefix("token_id:")) for token in told],
            [token["logprob"] for token in told],
            [t["top_logprobs"][0]["logprob"] - t["top_logprobs"][1]["logprob"] for t in told],
            choice["finish_reason"],
        )

    def streamed(self, messages: list[dict]) -> tuple[str, str]:
        """Text and finish reason."""
        body = {"messages": messages, "temperature": 0, "max_tokens": MAX_TOKENS, "stream": True}
        response = self._send("/v1/chat/completions", body)
        lines = response.get_data(as_text=True).split("\n")
        data = [line[6:] for line in lines if line.startswith("data: ")]
        assert data.pop() == "[DONE]"
        choices = [choice for each in data for choice in json.loads(each)["choices"]]
        text = "".join(choice["delta"].get("content") or "" for choice in choices)
        return text, choices[-1]["finish_reason"]

    def all_at_once(self, chats: list[list[dict]], clients: int) -> list[tuple[str, str]]:
        with ThreadPoolExecutor(clients) as pool:
            return list(pool.map(self.streamed, chats))

    def scores(self, text: str) -> list[float]:
        """The logprob of each token of a text but the first."""
        body = {"prompt": text, "max_tokens": 0, "echo": True, "logprobs": 0, "temperature": 0}
        [choice] = self.post("/v1/completions", body)["choices"]
        return choice["logprobs"]["token_logprobs"][1:]
