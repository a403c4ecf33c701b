"""One server for each family of tokenizers in each file of tests."""

import pytest

from tests.tokenizers.families import EACH_RUN, MORE
from tests.tokenizers.served import Served, model_of


def pytest_generate_tests(metafunc):
    every = metafunc.config.getoption("every_tokenizer")
    if "family" in metafunc.fixturenames:
        families = (*EACH_RUN, *MORE) if every else EACH_RUN
        metafunc.parametrize("family", families, scope="module")
    if "way" in metafunc.fixturenames:  # in this process, or a server in its own, over sockets
        metafunc.parametrize("way", ("wsgi", "gunicorn") if every else ("wsgi",), scope="module")


@pytest.fixture(scope="module")
def family_path(family, tmp_path_factory):
    return model_of(family, tmp_path_factory.mktemp("models") / family)


@pytest.fixture(scope="module")
def served(family, family_path):
    """A server whose model writes what a test says."""
    server = Served(family, family_path)
    yield server
    server.close()


@pytest.fixture(scope="module")
def asked(family, family_path):
    """A server that notes its jobs and writes nothing."""
    server = Served(family, family_path, is_writing=False)
    yield server
    server.close()
