"""The demo model's tokens, grammars, and the real generator over it."""

import pytest

from switchyard.engine.grammar.grammars import Grammars
from switchyard.engine.model.model_dir import ModelDir
from switchyard.engine.model.tokenizer import Tokenizer
from tests.conftest import DEMO
from tests.engine.forced import exl2_backend
from tests.layouts import LAYOUTS, lay_out


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(ModelDir.read(DEMO))


@pytest.fixture(scope="module")
def grammars(tokenizer):
    return Grammars(tokenizer)


@pytest.fixture(scope="module", params=LAYOUTS)
def layout(request, tmp_path_factory):
    """Grammars of a copy whose tags are plain text, special, or added and not special."""
    path = lay_out(request.param, DEMO, tmp_path_factory.mktemp("models") / request.param)
    return Grammars(Tokenizer(ModelDir.read(path)))


@pytest.fixture(scope="module")
def backend():
    backend = exl2_backend(DEMO)
    backend.open()
    yield backend
    backend.close()
