"""A tokenizer's files: broken ones, and those of different models."""

import json

import pytest

from switchyard import engine
from switchyard.engine.model.model_dir import ModelDir
from switchyard.engine.model.tokenizer import Tokenizer
from tests.engine.test_tokenizer import added
from tests.hostile import edit


def test_a_broken_file_is_named_in_one_line(directory):
    for text in ("{", "[]", "{}", '{"model": {"type": "BPE"}}'):
        (directory / "tokenizer.json").write_text(text)
        with pytest.raises(engine.ModelError, match=r"tokenizer\.json can't be read: [^\n]+$"):
            Tokenizer(ModelDir.read(str(directory)))


@pytest.mark.parametrize(
    ("file", "change", "told"),
    [
        ("config.json", {"vocab_size": 2000}, r"tokenizer\.json has token 2000, but vocab_size"),
        ("config.json", {"eos_token_id": [2, 4096]}, r"/config\.json: eos_token_id has 4096, but"),
        ("config.json", {"eos_token_id": "</s>"}, r"/config\.json: eos_token_id is '</s>', but"),
        ("generation_config.json", {"eos_token_id": -1}, r"n_config\.json: eos_token_id has -1"),
    ],
)
def test_files_of_different_models_are_told_apart(directory, file, change, told):
    edit(directory / file, **change)
    with pytest.raises(engine.ModelError, match=told):
        Tokenizer(ModelDir.read(str(directory)))


def test_an_added_token_that_the_weights_do_not_know_is_text(directory):
    spec = json.loads((directory / "tokenizer.json").read_text())
    for _ in range(4096 - len(spec["model"]["vocab"])):
        added(spec, f"<|filler {len(spec['model']['vocab'])}|>")
    added(spec, "[PAD]")
    (directory / "tokenizer.json").write_text(json.dumps(spec))
    tokenizer = Tokenizer(ModelDir.read(str(directory)))
    for token_ids in (tokenizer.encode("[PAD]", 100), tokenizer.encode_template("[PAD]", 100)):
        assert max(token_ids) < 4096 and tokenizer.decode(token_ids) == "[PAD]"
