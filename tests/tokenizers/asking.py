"""Asks a server over a family's tokenizer, whose model writes what a test chooses."""

import abc
import json
import pathlib
import sys
from collections.abc import Sequence

import requests
from tokenizers import Tokenizer

from tests.live.conftest import Server
from tests.tokenizers.spoken import LIMITS

CONF = pathlib.Path(__file__).with_name("gunicorn_conf.py")


class Asking(abc.ABC):
    """`tokenizer` is the reference: the library `tokenizers` alone."""

    def __init__(self, family: str, path: str) -> None:
        self.family = family
        self.path = path
        self.tokenizer = Tokenizer.from_file(f"{path}/tokenizer.json")

    @abc.abstractmethod
    def say_tokens(self, token_ids: Sequence[int]) -> str:
        """A message whose answer has these tokens."""

    @abc.abstractmethod
    def send(self, path: str, body: dict) -> tuple[int, str]:
        """Status and body of an answer."""

    def say(self, what: str | Sequence[int]) -> str:
        """A message whose answer is `what`: a text, in which special tokens count, or tokens."""
        return self.say_tokens(self.ids(what) if isinstance(what, str) else what)

    def ids(self, text: str) -> list[int]:
        """The tokens of a text that follows another: without the space that some put before one."""
        token_ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        if not self.tokenizer.id_to_token(token_ids[0]).startswith("▁"):
            return token_ids
        line = self.tokenizer.encode("\n", add_special_tokens=False).ids
        return self.tokenizer.encode(f"\n{text}", add_special_tokens=False).ids[len(line) :]

    def post(self, path: str, body: dict, status: int = 200) -> dict:
        told, text = self.send(path, body)
        assert told == status, text
        return json.loads(text)

    def stream(self, path: str, body: dict) -> list[dict]:
        """The bodies of a stream's events."""
        status, text = self.send(path, {**body, "stream": True})
        assert status == 200, text
        data = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
        return [json.loads(each) for each in data if each != "[DONE]"]


class OverGunicorn(Asking):
    """A server in its own process, over sockets."""

    def __init__(self, family: str, path: str, directory: pathlib.Path) -> None:
        super().__init__(family, path)
        command = [sys.executable, "-m", "gunicorn", "-c", str(CONF)]
        settings = {"model": path, "name": family, "device": "cpu", **LIMITS}
        self._server = Server(command, directory, **settings).wait_until_ready()

    def close(self) -> None:
        assert self._server.stop() == 0, self._server.output

    def say_tokens(self, token_ids: Sequence[int]) -> str:
        return f"SAY({' '.join(map(str, token_ids))})"

    def send(self, path: str, body: dict) -> tuple[int, str]:
        response = requests.post(f"{self._server.url}{path}", json=body, timeout=120)
        return response.status_code, response.content.decode()
