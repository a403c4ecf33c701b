import json
import shutil
import time
from dataclasses import replace
from functools import partial

import pytest

from switchyard.engine.backends.exl2 import cpu
from switchyard.engine.config import ModelConfig
from switchyard.engine.engine import Engine
from switchyard.engine.links.hosts.host import Host
from switchyard.engine.links.hosts.socket_link import SocketLink
from switchyard.engine.links.pipe import PipeLink
from switchyard.engine.links.replicas import ReplicaLink
from switchyard.engine.links.thread import EngineThread
from switchyard.engine.model.model_dir import ModelDir
from tests.engine import forced
from tests.engine.exl3 import stand_in
from tests.scripted import Gate, make_again

over_all_links = pytest.mark.parametrize(
    "link", ["thread", "process", "replicas", "socket"], indirect=True
)


def pytest_generate_tests(metafunc):
    """Tests marked `over_exl3` are run over ExLlamaV3's adapter, too."""
    mark = metafunc.definition.get_closest_marker("over_exl3")
    when = mark.args[0] if mark else "never"
    if when == "always" or when == metafunc.config.option.markexpr == "hardship":
        marks = pytest.mark.hardship if when == "hardship" else ()
        exl2 = pytest.param("exl2", id=pytest.HIDDEN_PARAM)
        metafunc.parametrize("library", [exl2, pytest.param("exl3", marks=marks)], indirect=True)


@pytest.fixture(scope="module", autouse=True)
def library(request):
    """What computes in `exl2_backend`. A fixture of a module that makes one needs this."""
    forced.LIBRARY = getattr(request, "param", "exl2")
    yield
    if forced.LIBRARY == "exl3":
        stand_in.remove()
    forced.LIBRARY = "exl2"


@pytest.fixture(scope="module")
def backend(model_path, library):
    """The real generator over the small model."""
    backend = forced.exl2_backend(model_path)
    backend.open()
    yield backend
    backend.close()


@pytest.fixture
def opened(model_path):
    """Opens such generators, which are closed in the end."""
    backends = []

    def opened(path=model_path, **config):
        backends.append(forced.exl2_backend(path, **config))
        backends[-1].open()
        return backends[-1]

    yield opened
    for backend in backends:
        backend.close()


@pytest.fixture
def link(request):
    """Where engine threads run: in this process, except for tests marked `over_all_links`."""
    return getattr(request, "param", "thread")


@pytest.fixture
def gate():
    return Gate()


@pytest.fixture
def make_engine(model_path, link, tmp_path):
    """An engine over a given backend, or in another process one that is made likewise; closed in
    the end.
    """
    engines, hosts = [], []

    def make(backend, start=True, **config):
        num_replicas = config.get("replicas", 1)
        model_config = ModelConfig(path=model_path, name="scripted", **config)

        def share(deliver):
            """A host of its own, in this process."""
            at = f"unix:{tmp_path}/{len(hosts)}.sock"
            fingerprint = ModelDir.read(model_path).fingerprint
            over_thread = partial(EngineThread, model_config, lambda: backend)
            hosts.append(Host(model_config, over_thread, at, b"", fingerprint))
            hosts[-1].start()
            shared = replace(model_config, link="socket", at=(at,))
            make = partial(SocketLink, shared, at, b"", fingerprint)
            return ReplicaLink(shared, [((), make)], deliver)

        def make_link(deliver):
            if link == "socket":
                return share(deliver)
            if link == "thread":
                return EngineThread(model_config, lambda: backend, deliver)
            make_backend = partial(make_again, type(backend), backend.made_of)
            make_pipe = partial(PipeLink, model_config, make_backend)
            if link == "process":
                return make_pipe(deliver)
            return ReplicaLink(model_config, [((), make_pipe)] * num_replicas, deliver)

        engine = Engine(model_config, make_link)
        if start:
            engine.start()
            assert engine.wait_until_loaded(20) or engine.error
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        assert engine.close(timeout=20)
    for host in hosts:
        assert host.close(timeout=20)


class Clock:
    """In place of the module time."""

    time = staticmethod(time.time)

    def __init__(self):
        self.now = 50.0  # seconds

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """A clock for these modules of the engine, which a test sets."""

    def clock(*modules):
        made = Clock()
        for module in modules:
            monkeypatch.setattr(f"switchyard.engine.{module}.time", made)
        return made

    return clock


@pytest.fixture
def directory(model_path, tmp_path):
    """A copy of the small model that a test may damage."""
    return shutil.copytree(model_path, tmp_path / "model")


@pytest.fixture
def write(model_path, tmp_path):
    """A directory with that config.json, and no weights."""

    def write(config, name="model"):
        path = tmp_path / name
        path.mkdir(exist_ok=True)
        shutil.copy(f"{model_path}/tokenizer.json", path)
        (path / "model.safetensors").touch()
        (path / "config.json").write_text(json.dumps(config))
        return str(path)

    return write


@pytest.fixture
def build(write):
    """The library's model, not loaded, with the tables that the library makes on one device."""
    cpu.install()
    from exllamav2 import ExLlamaV2, ExLlamaV2Config
    from exllamav2.device import ExLlamaV2DeviceContext

    from switchyard.engine.backends.exl2.load.compatibility import mend

    def build(spec, max_seq_len):
        config = ExLlamaV2Config()
        config.model_dir = write(spec.config)
        config.prepare(no_tensors=True)
        mend(config, ModelDir.read(config.model_dir).config)
        config.max_seq_len = max_seq_len
        model = ExLlamaV2(config)
        context = object.__new__(ExLlamaV2DeviceContext)  # else it makes a stream
        context.model, context.device_idx, context.ready = model, -1, True
        context.archparams = config.arch.lm
        context.prepare_sincos()
        model.device_context = [context]
        return model

    return build
