"""A model on the real generator writes a schema's properties in its own order."""

import random

import pytest

from switchyard.engine.grammar import constraints
from switchyard.engine.sampling import Sampling
from tests.conftest import DEMO
from tests.engine.forced import ending, exl2_backend, run
from tests.scripted import job

NAMES = ["black", "blue", "gold", "green", "red", "white"]
SCHEMA = {
    "type": "object",
    "properties": {name: {"type": "integer"} for name in NAMES},
    "required": NAMES,
}


@pytest.mark.parametrize("is_overlapping", [False, True])
def test_a_model_writes_its_own_order_on_the_engine(grammars, tokenizer, is_overlapping):
    """Twenty orders; the model's next token goes by how many it has written."""
    script = []
    backend = exl2_backend(
        DEMO, logits=lambda _: {script.pop(0) if script else 0: 0.0}, is_overlapping=is_overlapping
    )
    backend.open()
    constraint = constraints.json_schema(SCHEMA)
    try:
        for seed in range(20):
            names = random.Random(seed).sample(NAMES, len(NAMES))
            text = "{" + ", ".join(f'"{name}": {i}' for i, name in enumerate(names)) + "}"
            script[:] = [*grammars.tokenizer.tokenize_str(text), tokenizer.eos_token_ids[0]]
            greedy = Sampling(temperature=0.0)
            one = job("a", 200, prompt=(1,), constraint=constraint, sampling=greedy)
            end = ending(run(backend, one)["a"])
            assert (end.text, end.last.finish_reason) == (text, "stop")
    finally:
        backend.close()
