"""A chat with a model that writes what a test says."""

import pytest

from tests.app.conftest import frames
from tests.scripted import ScriptedBackend, says

URL = "/v1/chat/completions"


class Chat:
    """The answer to a body that was posted, and what became of that."""

    def __init__(self, client, backend, url, body):
        self.client, self.backend = client, backend
        self.again = lambda body, url=url: Chat(client, backend, url, body)
        self.response = client.post(url, json=body)

    @property
    def job(self):
        return self.backend.enqueued[-1]

    @property
    def prompt(self):
        assert self.response.status_code == 200, self.response.text
        tokenizer = self.client.models.get().tokenizer
        return tokenizer.decode(self.job.prompt)

    @property
    def choice(self):
        assert self.response.status_code == 200, self.response.text
        [choice] = self.response.json["choices"]
        return choice

    @property
    def message(self):
        return self.choice["message"]

    @property
    def deltas(self):
        return [body["choices"][0]["delta"] for body in frames(self.response)]

    @property
    def refusal(self):
        """The parameter at fault."""
        assert self.response.status_code == 400
        return self.response.json["error"]["param"]

    @property
    def ignored(self):
        return self.response.headers.get("X-Switchyard-Ignored")

    def verdict(self, text):
        """On a text, by the job's constraint: it may `end` there, must `go on`, or is `refused`."""
        model = self.client.models.get()
        matcher = model.grammars.matcher(self.job.constraint.grammar)
        if not all(map(matcher.consume_token, model.tokenizer._ordinary(text))):
            return "refused"
        return "end" if matcher.is_accepting() else "go on"


@pytest.fixture
def chat(make_client, with_template):
    """Asks a model that writes `pieces`, or answers by `backend`, with this chat template."""

    def chat(body, *pieces, template=None, backend=None, url=URL, **settings):
        if template is not None:
            settings["path"] = with_template(template)
        backend = backend or ScriptedBackend(says(*pieces or "x"))
        return Chat(make_client(backend, **settings), backend, url, body)

    return chat
