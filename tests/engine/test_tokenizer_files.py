"""A tokenizer's files: broken ones, and those of different models."""

import json
import shutil

import pytest

from switchyard import engine
from switchyard.engine.model.model_dir import ModelDir
from switchyard.engine.model.tokenizer import Tokenizer
from tests.engine.test_tokenizer import added


def test_a_broken_file_is_named_in_one_line(model_path, tmp_path):
    path = shutil.copytree(model_path, tmp_path / "model")
    for text in ("{", "[]", '{"model": {"type": "BPE"}}'):
        (path / "tokenizer.json").write_text(text)
        with pytest.raises(engine.ModelError, match=r"tokenizer\.json can't be read: [^\n]+$"):
            Tokenizer(ModelDir.read(str(path)))


@pytest.mark.parametrize(
    ("file", "change", "told"),
    [
        ("config.json", {"vocab_size": 2000}, r"tokenizer\.json has token 2000, but vocab_size"),
        ("config.json", {"eos_token_id": [2, 4096]}, r"/config\.json: eos_token_id has 4096, but"),
        ("config.json", {"eos_token_id": "</s>"}, r"/config\.json: eos_token_id is '</s>', but"),
        (
            "generation_config.json",
            {"eos_token_id": -1},
            r"n_config\.json: eos_token_id has -1, but",
        ),
    ],
)
def test_files_of_different_models_are_told_apart(model_path, tmp_path, file, change, told):
    path = shutil.copytree(model_path, tmp_path / "model")
    config = json.loads((path / file).read_text()) if (path / file).exists() else {}
    (path / file).write_text(json.dumps({**config, **change}))
    with pytest.raises(engine.ModelError, match=told):
        Tokenizer(ModelDir.read(str(path)))


def test_an_added_token_that_the_weights_do_not_know_is_text(model_path, tmp_path):
    path = shutil.copytree(model_path, tmp_path / "model")
    spec = json.loads((path / "tokenizer.json").read_text())
    for _ in range(4096 - len(spec["model"]["vocab"])):
        added(spec, f"<|filler {len(spec['model']['vocab'])}|>")
    added(spec, "[PAD]")
    (path / "tokenizer.json").write_text(json.dumps(spec))
    tokenizer = Tokenizer(ModelDir.read(str(path)))
    for token_ids in (tokenizer.encode("[PAD]", 100), tokenizer.encode_template("[PAD]", 100)):
        assert max(token_ids) < 4096 and tokenizer.decode(token_ids) == "[PAD]"
