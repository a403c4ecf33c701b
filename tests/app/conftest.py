import functools
import hashlib
import json
import queue
import shutil
import threading
import time

import flask
import pytest
from tokenizers import AddedToken, Tokenizer

from switchyard import engine
from switchyard.app import Settings, Switchyard, blueprint, create_app
from switchyard.app.delivery import sender
from switchyard.app.host.tables import TABLES
from switchyard.engine.config import ModelConfig
from switchyard.engine.links.thread import EngineThread
from switchyard.engine.messages import Chunk, Failed, Started
from tests.app.gunicorn import Connection, OverGunicorn
from tests.conftest import DEMO, wait_for
from tests.contract import Witness
from tests.scripted import Gate, ScriptedBackend, says


def pytest_generate_tests(metafunc):
    """Tests marked `both_ways` are run over each way in which answers may come."""
    marks = {mark.name for mark in metafunc.definition.iter_markers()}
    if "both_ways" in marks and "one_way" not in marks and "way" in metafunc.fixturenames:
        metafunc.parametrize("way", ["iterator", "gunicorn"], indirect=True)


@pytest.fixture
def way(request):
    """By WSGI alone, or to a socket as gunicorn writes."""
    return getattr(request, "param", "iterator")


@pytest.fixture
def make_client(model_path, way):
    """A Flask test client over a `backend`; keyword arguments are settings. Every answer must be as
    /openapi.json says.
    """
    opened = []
    servers = []
    witness = Witness()

    def make(backend=None, wait=True, path=model_path, terminate=None, **settings):
        backend = backend or ScriptedBackend()
        settings = Settings(model=path, name="scripted", **settings)
        config: ModelConfig = settings.engine_config()
        served = engine.Engine(config, lambda d: EngineThread(config, lambda: backend, d))
        models = engine.Models([served], settings.model_aliases)
        models.start()
        if wait:
            assert models.wait_until_loaded(20)
        opened.append(models)
        app = create_app(settings, models, terminate)
        app.after_request(witness)
        if way == "gunicorn":
            app.wsgi_app = OverGunicorn(app.wsgi_app)
            servers.append(app.wsgi_app)
        client = app.test_client()
        client.models, client.backend = models, backend
        return client

    yield make
    for server in servers:
        server.close()
    for models in opened:
        assert models.close(timeout=20)
    assert witness.faults == []


@pytest.fixture
def open_models(monkeypatch):
    """Have extensions open engines over the backends that are made of their configurations."""

    def use(make_backend=lambda config: ScriptedBackend()):
        def open(config):
            backend = functools.partial(make_backend, config)
            return engine.Engine(config, lambda d: EngineThread(config, backend, d))

        monkeypatch.setattr(TABLES, "open", open)

    return use


@pytest.fixture
def make_host(model_path):
    """A Flask application with the extension, which is closed in the end."""
    made = []

    def make(**settings):
        settings = settings if "models" in settings else {"model": model_path, **settings}
        app = flask.Flask("host")
        made.append(Switchyard(app, **settings))
        return app, made[-1]

    yield make
    for switchyard in made:
        switchyard.close(drain=0)


@pytest.fixture
def client(make_client):
    return make_client(ScriptedBackend())


@pytest.fixture
def loading(make_client):
    """Makes clients of a model that loads until the end of the test, or of `backend.opening`."""
    backend = ScriptedBackend()
    backend.opening.clear()
    yield lambda **more: make_client(backend, wait=False, **more)
    backend.opening.set()


class Opened:
    """What an application has opened, by name."""

    def __init__(self, backends):
        self.backends = {}
        self.next = dict(backends)

    def open(self, config):
        return engine.Engine(config, lambda d: EngineThread(config, lambda: self._load(config), d))

    def _load(self, config):
        backend = self.next.pop(config.name, None)
        backend = backend or ScriptedBackend(says(f"{config.name}-{config.max_pending}"))
        self.backends.setdefault(config.name, []).append(backend)
        return backend


@pytest.fixture
def serve(model_path, tmp_path):
    """A client of an application over scripted models: two of a table, one of `models_dir`."""
    clients = []
    shutil.copytree(model_path, tmp_path / "models" / "third")

    def serve(backends=(), **more):
        tables = [{"model": model_path, "name": "first", "aliases": ["chat"]}]
        tables.append({"model": model_path, "name": "second", "load": "demand"})
        settings = Settings(models=tables, models_dir=str(tmp_path / "models"), **more)
        opened = Opened(backends)
        models = blueprint.open_models(settings, open=opened.open)
        models.start()
        assert models.wait_until_loaded(20)
        client = create_app(settings, models).test_client()
        client.models, client.opened = models, opened
        clients.append(client)
        return client

    yield serve
    for client in clients:
        for backend in [one for loaded in client.opened.backends.values() for one in loaded]:
            backend.opening.set()
        assert client.models.close(timeout=20)


@pytest.fixture
def with_tokens(tmp_path):
    """Path of a copy of a model whose tokenizer has these tokens, too."""

    def make(names, path=DEMO):
        target = shutil.copytree(path, tmp_path / "model")
        tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
        tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in names])
        tokenizer.save(str(target / "tokenizer.json"))
        # Else they are beyond the weights.
        change(target / "config.json", vocab_size=tokenizer.get_vocab_size())
        return str(target)

    return make


@pytest.fixture
def with_template(model_path, tmp_path):
    """The path of a model whose chat template is another."""

    def make(template):
        path = shutil.copytree(model_path, tmp_path / "model", dirs_exist_ok=True)
        change(path / "tokenizer_config.json", chat_template=template)
        return str(path)

    return make


def change(file, **values):
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def fails(*pieces, error=None):
    """A script: starts, says these texts, and fails."""

    def script(job):
        yield Started(job.identifier)
        for i, piece in enumerate(pieces):
            yield Chunk(job.identifier, piece, (i,))
        yield Failed(job.identifier, error or engine.JobFailed("no luck"))

    return script


def frames(response):
    """The JSON bodies of a stream of server-sent events; the last must be [DONE]."""
    parts = [p for p in response.get_data(as_text=True).split("\n\n") if p]
    data = [p.removeprefix("data: ") for p in parts if p.startswith("data: ")]
    assert data.pop() == "[DONE]"
    return [json.loads(item) for item in data]


def named_events(response):
    """The bodies of a stream of named events, each named by its type."""
    assert response.status_code == 200 and response.mimetype == "text/event-stream"
    bodies = []
    for event in response.get_data(as_text=True).removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        bodies.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {bodies[-1]['type']}"
    return bodies


def prompt_of(client, backend=None):
    [job] = (backend or client.backend).enqueued
    return client.models.get().tokenizer.decode(job.prompt)


@pytest.fixture
def gate(make_client):
    """Opened in the end, before the models close; and when a test seems to hang."""
    gate = Gate()
    timer = threading.Timer(60, gate.open)
    timer.start()
    yield gate
    timer.cancel()
    gate.open()


@pytest.fixture
def connection():
    connection = Connection()
    yield connection
    connection.client.close()
    connection.server.close()


def wait_until_empty(client):
    """Until the engine holds no job."""
    model = client.models.get()
    with model._changed:
        assert model._changed.wait_for(lambda: not model.num_jobs, 20)


@pytest.fixture
def ask(make_client):
    """Post in its own thread; the response comes through the queue that is returned."""
    threads = []

    def ask(client, body, url="/v1/completions", **more):
        answers = queue.Queue()

        def run():
            response = client.application.test_client().post(url, json=body, **more)
            response.get_data()
            answers.put(response)

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        return answers

    yield ask
    for thread in threads:
        thread.join(20)


def listed(client, count, active=1):
    """The list, once it has `count` rows, the first of them `active` and with tokens."""

    def rows():
        data = client.get("/v1/requests").json["data"]
        begun = [row["completion_tokens"] > 0 for row in data[:active]]
        return len(data) == count and all(begun) and data

    return wait_for(rows, 20)


def listed_name(identifier):
    """What the list calls the request of a response."""
    return f"request-{hashlib.sha256(identifier.encode()).hexdigest()[:16]}"


class Streamed:
    """A streamed response, read event by event over a connection that may break."""

    def __init__(self, response):
        self.response = response
        self._parts = iter(response.response)
        self._buffer = ""
        self.events = []  # (id, data) of all that has been read

    def read(self, count=10**9):
        """So many more events, or all that there are."""
        while count and (block := self._next_block()) is not None:
            fields = dict(line.split(": ", 1) for line in block.split("\n"))
            if "data" in fields:  # else a comment
                self.events.append((fields.get("id"), fields["data"]))
                count -= 1
        return self

    def _next_block(self):
        while "\n\n" not in self._buffer:
            if (part := next(self._parts, None)) is None:
                return None
            self._buffer += part.decode()
        block, _, self._buffer = self._buffer.partition("\n\n")
        return block

    @property
    def last_id(self):
        return self.events[-1][0]

    @property
    def identifier(self):
        return self.last_id.rpartition(":")[0]

    @property
    def texts(self):
        """The texts of the choices, without the end."""
        bodies = [json.loads(data) for _, data in self.events if data != "[DONE]"]
        return [body["choices"][0]["text"] for body in bodies if "choices" in body]


@pytest.fixture
def stream(client):
    """Open an endless one, which is ended and closed in the end."""
    opened = []

    def stream(**asked):
        body = {"prompt": "x", "max_tokens": 2000, "stream": True}
        opened.append((Streamed(client.post("/v1/completions", json=body, **asked)).read(1), asked))
        return opened[-1][0]

    yield stream
    for streamed, asked in opened:
        client.delete(f"/v1/requests/{streamed.identifier}", **asked)
        streamed.read().response.close()


@pytest.fixture
def drop():
    """Close responses as a server does whose write has failed, each in its own thread."""
    threads = []

    def drop(streamed):
        threads.append(threading.Thread(target=streamed.response.close))
        threads[-1].start()
        return threads[-1]

    yield drop
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture
def handed_over(monkeypatch):
    """Released for each stream that a sender is given."""
    handed_over = threading.Semaphore(0)
    make = sender.Outlet

    def note(*args):
        outlet = make(*args)
        handed_over.release()
        return outlet

    monkeypatch.setattr(sender, "Outlet", note)
    return handed_over


@pytest.fixture
def held(make_client):
    """Makes a backend whose jobs wait behind their first text until `held.set()`."""
    is_over = threading.Event()

    def make(script):
        def wait(job):
            for event in script(job):
                yield event
                while isinstance(event, Chunk) and not is_over.is_set():
                    time.sleep(0.001)
                    yield Started(job.identifier)  # which says nothing

        return ScriptedBackend(wait)

    make.set = is_over.set
    yield make
    is_over.set()
