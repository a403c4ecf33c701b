import json

import pytest

import engine
from app import Settings, create_app
from engine.config import ModelConfig
from engine.thread import EngineThread


@pytest.fixture
def make_client(model_path):
    """A Flask test client over a given backend; keyword arguments are settings."""
    opened = []

    def make(backend, wait=True, path=model_path, **settings):
        settings = Settings(model=path, name="scripted", **settings)
        config: ModelConfig = settings.engine_config()
        models = engine.Models(
            [engine.Engine(config, lambda d: EngineThread(config, lambda: backend, d))]
        )
        models.start()
        if wait:
            assert models.wait_until_loaded(20)
        opened.append(models)
        client = create_app(settings, models).test_client()
        client.models = models
        return client

    yield make
    for models in opened:
        assert models.close(timeout=20)


def frames(response):
    """The JSON bodies of a stream of server-sent events; the last must be [DONE]."""
    parts = [p for p in response.get_data(as_text=True).split("\n\n") if p]
    data = [p.removeprefix("data: ") for p in parts if p.startswith("data: ")]
    assert data.pop() == "[DONE]"
    return [json.loads(item) for item in data]
