"""One server for each family of tokenizers in each file of tests."""

import pytest

from tests.tokenizers.families import EACH_RUN, MORE
from tests.tokenizers.served import Served, model_of


def pytest_generate_tests(metafunc):
    if "family" in metafunc.fixturenames:
        every = metafunc.config.getoption("every_tokenizer")
        families = (*EACH_RUN, *MORE) if every else EACH_RUN
        metafunc.parametrize("family", families, scope="module")


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
