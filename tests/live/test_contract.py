"""schemathesis on /openapi.json: what the document says and what the server does agree."""

import shutil

from tests.conftest import DEMO
from tests.gaps import add_gap_tokens
from tests.live.schemathesis import num_tried


def test_schemathesis_finds_nothing(start, tmp_path):
    """With few examples, drawn at random; scripts/contract tries many, and all borders."""
    model = shutil.copytree(DEMO, tmp_path / "demo")
    add_gap_tokens(model)
    server = start(model=model, default_max_tokens=16).wait_until_ready()
    assert num_tried(server, tmp_path, "--phases", "fuzzing,stateful", "--max-examples", "8") > 200
