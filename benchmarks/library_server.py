"""A server over exllamav3's own async generator, to compare with: /v1/completions, streamed.

    LIBRARY_MODEL=MODEL_DIR uvicorn benchmarks.library_server:app --port 8001

It honours `prompt`, `max_tokens`, `temperature` and `ignore_eos`, and reads its sizes from
LIBRARY_TOKENS (of the cache) and LIBRARY_ROWS. benchmarks/serve.py calls it like any server.
"""

import json
import os

from exllamav3 import AsyncGenerator, AsyncJob, Cache, Config, Model, Tokenizer
from exllamav3.generator.sampler import ComboSampler

JSON = [(b"content-type", b"application/json")]
EVENTS = [(b"content-type", b"text/event-stream")]


class Library:
    """The model; its generator begins with the first request, inside the event loop."""

    def __init__(self) -> None:
        config = Config.from_directory(os.environ["LIBRARY_MODEL"])
        self._model = Model.from_config(config)
        tokens = int(os.environ.get("LIBRARY_TOKENS", "65536"))
        self._cache = Cache(self._model, max_num_tokens=tokens)
        self._model.load(device="cuda:0", progressbar=False)
        self.tokenizer = Tokenizer.from_config(config)
        self._eos = config.eos_token_id_list
        self._generator = None

    def job(self, body):
        rows = int(os.environ.get("LIBRARY_ROWS", "64"))
        self._generator = self._generator or AsyncGenerator(
            model=self._model, cache=self._cache, tokenizer=self.tokenizer, max_batch_size=rows
        )
        return AsyncJob(
            self._generator,
            input_ids=self.tokenizer.encode(body["prompt"], add_bos=True),
            max_new_tokens=body["max_tokens"],
            sampler=ComboSampler(temperature=body["temperature"]),
            stop_conditions=[] if body.get("ignore_eos") else self._eos,
        )


library = Library()


async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    is_completion = scope["path"] == "/v1/completions"
    start = {"type": "http.response.start", "status": 200}
    await send({**start, "headers": EVENTS if is_completion else JSON})
    if not is_completion:
        body = json.dumps({"data": [{"id": "library"}]}).encode()
        return await send({"type": "http.response.body", "body": body})
    body, is_more = b"", True
    while is_more:
        message = await receive()
        body, is_more = body + message["body"], message.get("more_body", False)
    num_tokens = 0

    async def event(data):
        text = f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n"
        await send({"type": "http.response.body", "body": text.encode(), "more_body": True})

    async for result in library.job(json.loads(body)):
        if text := result.get("text"):
            await event({"choices": [{"index": 0, "text": text, "finish_reason": None}]})
        if result["eos"]:
            num_tokens = result["new_tokens"]
    await event({"choices": [], "usage": {"completion_tokens": num_tokens}})
    await event("[DONE]")
    await send({"type": "http.response.body", "body": b""})
