"""Model directories made to harm the server that reads them."""

import base64
import os
import shutil

import pytest

from switchyard import engine
from switchyard.engine.model.model_dir import ModelDir
from switchyard.engine.model.tensors import read_sizes
from switchyard.engine.model.tokenizer import Tokenizer
from tests.hostile import edit

NESTED = b"[" * 200_000


def read(directory):
    model_dir = ModelDir.read(str(directory))
    read_sizes(directory)
    return Tokenizer(model_dir)


def sequence(*steps):
    return {"type": "Sequence", "normalizers": list(steps)}


def replace(content, **pattern):
    return {"type": "Replace", "pattern": pattern or {"String": "a"}, "content": content}


TABLE = base64.b64encode(bytes(4) + b"x" * 1000 + b"\0").decode()


@pytest.mark.parametrize(
    ("normalizer", "told"),
    [
        (sequence(replace("b" * 70, Regex="")), "142 times"),
        (sequence({"type": "Prepend", "prepend": "x" * 1000}), "2e\\+03 times"),
        (sequence(*[{"type": "ByteLevel"}] * 7), "256 times"),
        (sequence({"type": "Precompiled", "precompiled_charsmap": TABLE}), "2e\\+03 times"),
        (sequence(*[{"type": "NFC"}] * 65), "more than 64 steps"),
    ],
    ids=["regex", "prepend", "bytes", "table", "many"],
)
def test_a_text_that_would_grow_is_refused_at_the_load(directory, normalizer, told):
    edit(directory / "tokenizer.json", normalizer=normalizer)
    with pytest.raises(engine.ModelError, match=rf"tokenizer\.json .*({told})"):
        read(directory)


def test_usual_normalizers_are_served(directory):
    steps = sequence({"type": "Prepend", "prepend": "_"}, replace("_", String=" "), {"type": "NFC"})
    edit(directory / "tokenizer.json", normalizer=steps)
    assert read(directory)


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer_config.json", "tokenizer.json", "model.safetensors"]
)
def test_json_that_is_nested_deeply_is_named(directory, name):
    head = len(NESTED).to_bytes(8, "little") if name == "model.safetensors" else b""
    (directory / name).write_bytes(head + NESTED)
    with pytest.raises(engine.ModelError, match=rf"{name} can't be read: [^\n]+$"):
        read(directory)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "chat_template.jinja"])
def test_a_file_beyond_its_bound_is_not_read(directory, name):
    (directory / name).touch()
    os.truncate(directory / name, 1 << 40)
    with pytest.raises(engine.ModelError, match=rf"{name} can't be read: .* more than"):
        read(directory)


def test_links_end_in_the_directory_or_in_the_caches_blobs(model_path, tmp_path):
    model = tmp_path / "models--X--Y"
    snapshot = model / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    shutil.copytree(model_path, model / "blobs")
    for file in (model / "blobs").iterdir():
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    (tmp_path / "link").symlink_to(snapshot)
    assert read(snapshot) and read(tmp_path / "link")
    secret = tmp_path / "secret"
    secret.write_text("the password")
    for name in ("chat_template.jinja", "additional_chat_templates/more.jinja", "more.safetensors"):
        (snapshot / name).parent.mkdir(exist_ok=True)
        (snapshot / name).symlink_to(secret)
        with pytest.raises(engine.ModelError, match=f"{name} is a link out of the model directory"):
            read(snapshot)
        (snapshot / name).unlink()
    (snapshot / "more.json").symlink_to("more.json")
    with pytest.raises(engine.ModelError, match="link"):
        read(snapshot)
