"""What a model directory must hold, and the one line that says what it lacks."""

import math
import os
import re
import shutil
from types import SimpleNamespace

import pytest

from switchyard import engine
from switchyard.engine.grammar.grammars import Grammars
from switchyard.engine.model.model_dir import ModelDir
from switchyard.engine.model.tokenizer import Tokenizer
from tests.hostile import edit
from tests.scripted import Panic


def test_a_complete_directory_is_read(model_path):
    model_dir = ModelDir.read(model_path)
    assert "<|im_start|>" in model_dir.chat_template
    assert model_dir.special_token("bos_token") == "<s>"
    assert len(model_dir.eos_token_ids) == 2  # of config.json, and the template's stop token


def test_the_size_and_the_number_of_parameters_are_those_of_the_weights(model_path):
    model_dir = ModelDir.read(model_path)
    assert model_dir.size == sum(f.stat().st_size for f in model_dir.path.glob("*.safetensors"))
    assert model_dir.num_parameters * 2 == pytest.approx(model_dir.size, rel=0.01)  # float16
    assert model_dir.shape.num_layers == 2


def test_a_model_was_created_when_its_config_was(directory):
    os.utime(directory / "config.json", (1, 1_600_000_000.9))
    assert ModelDir.read(str(directory)).created == 1_600_000_000


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(directory, missing):
    (directory / missing).unlink()
    with pytest.raises(engine.ModelError, match=rf"^[^\n]*{missing.partition('.')[2]}[^\n]*$"):
        ModelDir.read(str(directory))


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff"])
def test_a_config_that_cannot_be_read_is_named(directory, content):
    (directory / "config.json").write_bytes(content)
    with pytest.raises(engine.ModelError, match=r"config\.json"):
        ModelDir.read(str(directory))


COUNTS = ("num_hidden_layers", "vocab_size", "max_position_embeddings", "num_key_value_heads")
ODD = (-1, 0, 2.5, 2**31, True, math.nan, math.inf)
WRONG = [({name: value}, f"{name} is {value}, but must be a") for name in COUNTS for value in ODD]
WRONG += [
    ({name: value}, f"{name} is {value}, but must be")
    for name in ("rms_norm_eps", "rope_theta")
    for value in (-1, 0, math.nan, math.inf)
]
PARTS = ("text_config", "rope_parameters", "rope_scaling")
WRONG += [({part: {"rope_theta": -5.0}}, r"rope_theta is -5\.0") for part in PARTS]
WRONG += [({"num_hidden_layers": 1025}, "must be a whole number from 1 to 1024")]


@pytest.mark.parametrize(("changes", "told"), WRONG, ids=str)
def test_a_number_that_no_model_has_is_refused_by_its_name(directory, changes, told):
    edit(directory / "config.json", **changes)
    with pytest.raises(engine.ModelError, match=rf"config\.json: .*{told}"):
        ModelDir.read(str(directory))


def test_null_and_whole_floats_are_what_they_were(directory):
    edit(directory / "config.json", head_dim=None, max_position_embeddings=2048.0)
    assert ModelDir.read(str(directory)).config["max_position_embeddings"] == 2048


@pytest.mark.parametrize("kind", ["pipe", "directory", "device"])
@pytest.mark.parametrize(
    "name",
    [
        *("config.json", "tokenizer.json", "generation_config.json", "tokenizer_config.json"),
        *("chat_template.jinja", "model.safetensors", "model-00002.safetensors"),
    ],
)
def test_what_is_no_file_is_named_and_not_waited_for(directory, name, kind):
    path = directory / name
    path.unlink(missing_ok=True)
    kinds = {"pipe": os.mkfifo, "directory": os.mkdir}
    kinds.get(kind, lambda path: path.symlink_to("/dev/zero"))(path)
    with pytest.raises(engine.ModelError, match=f"{name} is not a regular file"):
        ModelDir.read(str(directory))


def test_a_config_without_architecture_is_refused(directory):
    edit(directory / "config.json", architectures=[])
    with pytest.raises(engine.ModelError, match="names no architecture"):
        ModelDir.read(str(directory))


@pytest.mark.parametrize("error", [Panic("bad table"), RuntimeError("bad table")], ids=repr)
def test_a_tokenizer_that_a_library_can_not_read_is_a_reason(directory, monkeypatch, error):
    tokenizer = Tokenizer(ModelDir.read(str(directory)))

    def fail(*arguments, **settings):
        raise error

    monkeypatch.setattr("switchyard.engine.grammar.tokens.LLTokenizer", fail)
    told = r"tokenizer\.json can't be used for constraints.*bad table"
    with pytest.raises(engine.ModelError, match=told):
        Grammars(tokenizer)
    monkeypatch.setattr("tokenizers.Tokenizer", SimpleNamespace(from_buffer=fail))
    with pytest.raises(engine.ModelError, match=r"tokenizer\.json can't be read: bad table"):
        Tokenizer(ModelDir.read(str(directory)))


def test_every_eos_token_is_found(directory):
    edit(directory / "config.json", eos_token_id=[2, 7])
    edit(directory / "generation_config.json", eos_token_id=9)
    assert ModelDir.read(str(directory)).eos_token_ids == (2, 7, 9)


def retime(path):
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))


def turn(path, place):
    """Another byte at this place. At the same time, as its file tells."""
    stat, data = path.stat(), bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.parametrize(
    "change",
    [
        lambda root: edit(root / "config.json", rms_norm_eps=1e-3),
        lambda root: turn(root / "model.safetensors", 0),
        lambda root: turn(root / "model.safetensors", -1),
        lambda root: turn(root / "tokenizer.json", 5000),
        lambda root: os.truncate(root / "model.safetensors", 100),
        lambda root: (root / "model.safetensors").rename(root / "other.safetensors"),
        lambda root: shutil.copy(root / "model.safetensors", root / "more.safetensors"),
        lambda root: edit(root / "generation_config.json", eos_token_id=3),
        lambda root: (root / "chat_template.jinja").write_text("another"),
    ],
)
def test_the_fingerprint_changes_with_what_a_model_is_read_from(directory, change):
    before = ModelDir.read(str(directory)).fingerprint
    assert re.fullmatch("fp_[0-9a-f]{12}", before)
    change(directory)
    assert ModelDir.read(str(directory)).fingerprint != before


def test_the_fingerprint_stays_where_nothing_of_the_model_changes(directory, tmp_path):
    before = ModelDir.read(str(directory)).fingerprint
    assert ModelDir.read(str(directory)).fingerprint == before
    (directory / "README.md").write_text("what it is")
    moved = shutil.copytree(directory, tmp_path / "elsewhere", copy_function=shutil.copyfile)
    for path in moved.iterdir():
        retime(path)
    assert ModelDir.read(str(moved)).fingerprint == before


def test_a_template_file_wins_over_the_tokenizers_config(directory):
    (directory / "chat_template.jinja").write_text("from the file")
    assert ModelDir.read(str(directory)).chat_template == "from the file"


def test_a_template_file_that_cannot_be_read_is_named(directory):
    (directory / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(engine.ModelError, match=r"chat_template\.jinja can't be read: .*utf-8"):
        ModelDir.read(str(directory))


def by_name(**templates):
    return [{"name": name, "template": text} for name, text in templates.items()]


def texts(found):
    return {name: source.text for name, source in found.chat_templates.items()}


def test_several_templates_are_read_by_name(directory):
    edit(directory / "tokenizer_config.json", chat_template=by_name(tool_use="t", default="d"))
    found = ModelDir.read(str(directory))
    assert (texts(found), found.chat_template) == ({"tool_use": "t", "default": "d"}, "d")


def test_templates_of_further_files_are_read_by_their_names(directory):
    before = ModelDir.read(str(directory)).fingerprint
    (directory / "chat_template.jinja").write_text("d")
    more = directory / "additional_chat_templates" / "tool_use.jinja"
    more.parent.mkdir()
    more.write_text("t")
    found = ModelDir.read(str(directory))
    assert texts(found) == {"default": "d", "tool_use": "t"}
    more.write_text("tt")
    assert len({before, found.fingerprint, ModelDir.read(str(directory)).fingerprint}) == 3


def test_a_processors_template_counts_where_the_tokenizer_has_none(directory):
    (directory / "chat_template.json").write_text('{"chat_template": "p"}')
    assert ModelDir.read(str(directory)).chat_template != "p"
    edit(directory / "tokenizer_config.json", chat_template=None)
    assert ModelDir.read(str(directory)).chat_template == "p"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (by_name(tool_use="t", rag="r"), r"\(tool_use, rag\) is the default"),
        ({"a": "b"}, r"\(a\) is the default"),
        (["d"], "must be a text, or a list"),
        ([{"name": "default"}], "must be a text, or a list"),
        (5, "must be a text, or a list"),
    ],
)
def test_templates_without_a_default_are_refused(directory, template, reason):
    edit(directory / "tokenizer_config.json", chat_template=template)
    with pytest.raises(engine.ModelError, match=rf"tokenizer_config\.json: .*{reason}"):
        ModelDir.read(str(directory))


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"quantization_config": {"quant_method": "exl2", "bits": 4.25}}, "EXL2 of 4.25 bits"),
        ({"quantization_config": {"quant_method": "exl2"}}, "EXL2"),
        ({"torch_dtype": "float32", "dtype": "bfloat16"}, "float32"),
        ({"torch_dtype": None, "dtype": "bfloat16"}, "bfloat16"),
        ({"torch_dtype": None, "quantization_config": {}}, "float16"),
    ],
)
def test_the_format_of_the_weights_is_told(directory, told, expected):
    edit(directory / "config.json", **told)
    assert ModelDir.read(str(directory)).format == expected


def test_the_end_is_the_tokenizers_where_no_other_file_names_one(directory):
    edit(directory / "config.json", eos_token_id=None)
    (directory / "generation_config.json").unlink(missing_ok=True)
    for told, expected in (("</s>", 1), ({"content": "</s>"}, 1), ({}, 0), ("none such", 0)):
        edit(directory / "tokenizer_config.json", eos_token=told)
        tokenizer = Tokenizer(ModelDir.read(str(directory)))
        assert [tokenizer.token(one) for one in tokenizer.eos_token_ids] == ["</s>"] * expected


def test_bos_follows_the_models_own_wish(directory):
    edit(directory / "tokenizer_config.json", add_bos_token=False)
    tokenizer = Tokenizer(ModelDir.read(str(directory)))
    assert tokenizer.decode(tokenizer.encode("x", 10)) == "x"
    assert len(tokenizer.encode("x", 10)) == 1
    spec = directory / "tokenizer.json"
    edit(spec, post_processor=None)
    for wish, number in ((None, 1), (True, 2)):
        edit(directory / "tokenizer_config.json", add_bos_token=wish)
        assert len(Tokenizer(ModelDir.read(str(directory))).encode("x", 10)) == number
