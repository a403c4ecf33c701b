"""A server over a real tokenizer and the real generator, whose model writes what a test chooses."""

import argparse
import itertools
import json
import pathlib
import shutil
from collections.abc import Sequence

from scripts import make_model
from switchyard import engine
from switchyard.app import Settings, create_app
from switchyard.engine.backends.base import Backend
from switchyard.engine.links.thread import EngineThread
from switchyard.engine.messages import ModelInfo, Started
from tests.contract import Witness
from tests.scripted import ScriptedBackend, finished
from tests.tokenizers.asking import Asking
from tests.tokenizers.families import WRITTEN, package
from tests.tokenizers.spoken import LIMITS, speaking


def model_of(family: str, path: pathlib.Path, **files: dict | None) -> str:
    """Makes a tiny model with a family's tokenizer. `files`: changes of config.json and
    tokenizer_config.json, by their stems, and the content of other files. None removes a key, or a
    file.
    """
    source = path.with_name(f"{path.name}-source")
    shutil.copytree(package(family), source)
    if family in WRITTEN:
        change(source / "tokenizer_config.json", chat_template=WRITTEN[family])
    sizes = dict(zip(make_model.SIZES, make_model.SHAPES["tiny"], strict=True))
    make_model.make_model(path, argparse.Namespace(tokenizer=source, exl2=False, seed=0, **sizes))
    for stem, content in files.items():
        if content is None:
            (path / f"{stem}.json").unlink()
        else:
            change(path / f"{stem}.json", **content)
    return str(path)


def change(path: pathlib.Path, **changes: object) -> None:
    content = json.loads(path.read_text("utf-8")) if path.exists() else {}
    changed = {**content, **changes}
    kept = {key: value for key, value in changed.items() if value is not None}
    path.write_text(json.dumps(kept), "utf-8")


class Served(Asking):
    """A server over the model at `path`, in this process. `client` is Flask's test client. Unless
    `is_writing`, there is no generator, which loads sooner, and every answer is empty.
    """

    def __init__(self, family: str, path: str, is_writing: bool = True, **settings: object) -> None:
        super().__init__(family, path)
        self.jobs: list[engine.Job] = []  # all that have come to the generator
        self.next: dict[int, dict[int, float]] = {}  # logits behind a token; else the model ends
        self._answers: dict[int, tuple[int, ...]] = {}
        self._numbers = itertools.count(1)
        read = Settings(model=path, name=family, device="cpu", **{**LIMITS, **settings})
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

    def say_tokens(self, token_ids: Sequence[int]) -> str:
        number = next(self._numbers)
        self._answers[number] = tuple(token_ids)
        return f"SAY({number})"

    def send(self, path: str, body: dict) -> tuple[int, str]:
        """As it is: Flask's own `json` sorts the keys, which templates write in their order."""
        headers = {"Content-Type": "application/json"}
        response = self.client.post(path, data=json.dumps(body), headers=headers)
        return response.status_code, response.get_data(as_text=True)

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
        return speaking(
            self.engine.config,
            self.engine.grammars,
            lambda said: self._answers[int(said)],
            lambda token_id: self.next.get(token_id),
            self.jobs.append,
        )
