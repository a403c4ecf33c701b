"""A server over a real tokenizer and the real generator, whose model writes what a test chooses."""

import argparse
import itertools
import json
import pathlib
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace

from tokenizers import Tokenizer
from werkzeug.test import TestResponse

from scripts import make_model
from switchyard import engine
from switchyard.app import Settings, create_app
from switchyard.engine.backends.base import Backend
from switchyard.engine.job import Forced
from switchyard.engine.links.thread import EngineThread
from switchyard.engine.messages import ModelInfo, Started
from tests.contract import Witness
from tests.engine.forced import exl2_backend
from tests.scripted import ScriptedBackend, finished
from tests.tokenizers.families import WRITTEN, package

KEY = re.compile(r"SAY\((\d+)\)")


def model_of(family: str, path: pathlib.Path, **files: dict) -> str:
    """Makes a tiny model with a family's tokenizer. `files`: changes of config.json and
    tokenizer_config.json, by their stems, and the content of other files. None removes a key.
    """
    source = path.with_name(f"{path.name}-source")
    shutil.copytree(package(family), source)
    if family in WRITTEN:
        change(source / "tokenizer_config.json", chat_template=WRITTEN[family])
    sizes = dict(zip(make_model.SIZES, make_model.SHAPES["tiny"], strict=True))
    make_model.make_model(path, argparse.Namespace(tokenizer=source, exl2=False, seed=0, **sizes))
    for stem, content in files.items():
        change(path / f"{stem}.json", **content)
    return str(path)


def change(path: pathlib.Path, **changes: object) -> None:
    content = json.loads(path.read_text("utf-8")) if path.exists() else {}
    changed = {**content, **changes}
    kept = {key: value for key, value in changed.items() if value is not None}
    path.write_text(json.dumps(kept), "utf-8")


class Served:
    """A server over the model at `path`, in this process. `client` is Flask's test client,
    `tokenizer` the reference: the library `tokenizers` alone. Unless `is_writing`, there is no
    generator, which loads sooner, and every answer is empty.
    """

    def __init__(self, family: str, path: str, is_writing: bool = True, **settings: object) -> None:
        self.family = family
        self.path = path
        self.tokenizer = Tokenizer.from_file(f"{path}/tokenizer.json")
        self.jobs: list[engine.Job] = []  # all that have come to the generator
        self.next: dict[int, dict[int, float]] = {}  # logits behind a token; else the model ends
        self._answers: dict[int, tuple[int, ...]] = {}
        self._numbers = itertools.count(1)
        limits = {"max_seq_len": 8192, "cache_tokens": 32768, "max_batch_size": 8}
        read = Settings(model=path, name=family, device="cpu", **{**limits, **settings})
        config = read.engine_config()
        open_backend = self._open if is_writing else self._open_silent
        self.engine = engine.Engine(config, lambda d: EngineThread(config, open_backend, d))
        self.models = engine.Models([self.engine])
        self.models.start()
        assert self.models.wait_until_loaded(120), self.engine.error
        app = create_app(read, self.models)
        self.witness = Witness()
        app.after_request(self.witness)
        self.client = app.test_client()

    def close(self) -> None:
        assert self.models.close(timeout=20)
        assert self.witness.faults == []

    def say(self, what: str | Sequence[int]) -> str:
        """A message whose answer is `what`: a text, in which special tokens count, or tokens."""
        if isinstance(what, str):
            what = self.ids(what)
        number = next(self._numbers)
        self._answers[number] = tuple(what)
        return f"SAY({number})"

    def ids(self, text: str) -> list[int]:
        """The tokens of a text that follows another: without the space that some put before one."""
        token_ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        if not self.tokenizer.id_to_token(token_ids[0]).startswith("▁"):
            return token_ids
        line = self.tokenizer.encode("\n", add_special_tokens=False).ids
        return self.tokenizer.encode(f"\n{text}", add_special_tokens=False).ids[len(line) :]

    def post(self, path: str, body: dict, status: int = 200) -> dict:
        response = self._send(path, body)
        assert response.status_code == status, response.get_data(as_text=True)
        return response.json

    def stream(self, path: str, body: dict) -> list[dict]:
        """The bodies of a stream's events."""
        response = self._send(path, {**body, "stream": True})
        text = response.get_data(as_text=True)
        assert response.status_code == 200, text
        data = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
        return [json.loads(each) for each in data if each != "[DONE]"]

    def _send(self, path: str, body: dict) -> TestResponse:
        """As it is: Flask's own `json` sorts the keys, which templates write in their order."""
        headers = {"Content-Type": "application/json"}
        return self.client.post(path, data=json.dumps(body), headers=headers)

    # Engine thread

    def _open_silent(self) -> Backend:
        def end(job: engine.Job) -> list[engine.JobEvent]:
            self.jobs.append(job)
            return [Started(job.identifier), finished(job, 0, "stop")]

        config = self.engine.config
        size = self.engine.model_dir.config["vocab_size"]
        info = ModelInfo(config.max_seq_len, size, engine.PAGE_SIZE, 1000, "silent")
        return ScriptedBackend(end, info=info)

    def _open(self) -> Backend:
        [end, *_] = self.engine.tokenizer.eos_token_ids
        config = self.engine.config
        names = ("max_seq_len", "cache_tokens", "max_batch_size")
        backend = exl2_backend(
            config.path,
            logits=lambda token_id: self.next.get(token_id, {end: 0.0}),
            grammars=self.engine.grammars,
            **{name: getattr(config, name) for name in names},
        )
        enqueue = backend.enqueue

        def scripted(job: engine.Job) -> None:
            self.jobs.append(job)
            prompt = self.tokenizer.decode(job.prompt, skip_special_tokens=False)
            if found := KEY.findall(prompt):
                job = replace(job, forced=Forced(0, "\0", self._answers[int(found[-1])]))
            enqueue(job)

        backend.enqueue = scripted
        return backend
