import pytest

from engine.config import ModelConfig
from engine.engine import Engine
from engine.thread import EngineThread


@pytest.fixture
def make_engine(model_path):
    """An engine over a given backend, in an engine thread of this process; closed in the end."""
    engines = []

    def make(backend, start=True, **config):
        model_config = ModelConfig(path=model_path, name="scripted", **config)
        engine = Engine(
            model_config, lambda deliver: EngineThread(model_config, lambda: backend, deliver)
        )
        if start:
            engine.start()
            assert engine.wait_until_loaded(20) or engine.error
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        assert engine.close(timeout=20)
