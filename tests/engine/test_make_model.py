"""The random model that tests and first trials run on."""

import importlib.util
import json
import pathlib
import stat
import subprocess
import sys

import jinja2
import pytest
import tokenizers
import torch
from safetensors.torch import load_file

from switchyard import engine
from tests.engine.forced import run

SCRIPT = pathlib.Path(__file__).parents[2] / "scripts" / "make_model.py"
SMALL = ("--hidden-size", "128", "--num-layers", "1", "--num-heads", "2", "--vocab-size", "512")


def files(path):
    return {file.name: file.read_bytes() for file in path.iterdir()}


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("make_model", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def main(script, monkeypatch):
    """The program, in this process."""

    def main(path, *arguments):
        monkeypatch.setattr(sys, "argv", ["make_model.py", str(path), *arguments])
        script.main()

    return main


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    path = tmp_path_factory.mktemp("made") / "small"
    command = [sys.executable, str(SCRIPT), str(path), *SMALL]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") == 1
    return path


def test_the_same_arguments_make_the_same_bytes_in_another_process(small, main, tmp_path):
    main(tmp_path / "again", *SMALL)
    assert files(tmp_path / "again") == files(small)


def test_another_seed_makes_other_weights_and_the_same_tokenizer(small, main, tmp_path):
    main(tmp_path / "other", *SMALL, "--seed", "1")
    other, first = files(tmp_path / "other"), files(small)
    differing = {name for name in first if other[name] != first[name]}
    assert differing == {"model.safetensors"}


def test_everybody_may_read_the_files(small):
    assert stat.S_IMODE(small.stat().st_mode) == 0o755
    assert {stat.S_IMODE(file.stat().st_mode) for file in small.iterdir()} == {0o644}


def test_exllamav2_reads_the_layout(model_path):
    from switchyard.engine.backends.exl2 import cpu

    cpu.install()
    from exllamav2 import ExLlamaV2Config, ExLlamaV2Tokenizer

    config = ExLlamaV2Config(model_path)
    assert config.architecture == "LlamaForCausalLM"
    assert (config.head_dim, config.max_seq_len, config.vocab_size) == (64, 2048, 4096)
    assert config.hidden_size % 128 == 0 and config.intermediate_size % 128 == 0
    tokenizer = ExLlamaV2Tokenizer(config)
    assert tokenizer.get_vocab_size() == config.vocab_size
    text = "def main():\n    return 'naïve 🙂'"
    assert tokenizer.decode(tokenizer.encode(text))[0] == text
    stop = {tokenizer.single_id("</s>"), tokenizer.single_id("<|im_end|>")}
    assert set(config.generation_config["eos_token_id"]) == stop
    assert config.eos_token_id == tokenizer.eos_token_id == tokenizer.single_id("</s>")
    assert config.bos_token_id == tokenizer.bos_token_id == tokenizer.single_id("<s>")


def test_weights_are_float16_in_the_shapes_that_config_json_tells(small):
    tensors = load_file(small / "model.safetensors")
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float16}
    assert len(shapes) == 3 + 9
    assert shapes["lm_head.weight"] == shapes["model.embed_tokens.weight"] == (512, 128)
    assert shapes["model.layers.0.self_attn.k_proj.weight"] == (128, 128)


def assert_no_holes(tokenizer, vocab_size):
    special = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    assert tokenizer.get_vocab_size() == vocab_size
    silent = [i for i in range(vocab_size) if not tokenizer.decode([i])]
    assert set(silent) == special
    assert len(special) == 5


def test_every_token_id_has_text_or_is_special(model_path):
    assert_no_holes(tokenizers.Tokenizer.from_file(f"{model_path}/tokenizer.json"), 4096)


def test_a_vocabulary_larger_than_the_text_yields_is_filled_up(script, monkeypatch):
    monkeypatch.setattr(script, "corpus", lambda: "one word0 two word0")
    tokenizer = script.make_tokenizer(320)
    assert_no_holes(tokenizer, 320)
    assert tokenizer.decode(tokenizer.encode(" word1 word2").ids) == " word1 word2"


def test_the_chat_template_separates_turns_by_special_tokens(model_path):
    root = pathlib.Path(model_path)
    config = json.loads((root / "tokenizer_config.json").read_text())
    said = {"system": "Be brief.", "user": "Hi {{ there }}", "assistant": "Yes?"}
    messages = [{"role": role, "content": text} for role, text in said.items()]
    template = jinja2.Environment().from_string(config["chat_template"])
    told = {"messages": messages, "bos_token": config["bos_token"]}
    text = "<s>" + "".join(f"<|im_start|>{role}\n{t}<|im_end|>\n" for role, t in said.items())
    assert template.render(told) == text
    whole = text + "<|im_start|>assistant\n"
    assert template.render(told, add_generation_prompt=True) == whole
    tokenizer = tokenizers.Tokenizer.from_file(str(root / "tokenizer.json"))
    tokens = tokenizer.encode(whole, add_special_tokens=False).tokens
    assert (tokens.count("<|im_start|>"), tokens.count("<|im_end|>"), tokens[0]) == (4, 3, "<s>")


def test_a_model_with_anothers_tokenizer_generates(opened, main, model_path, tmp_path):
    main(tmp_path / "model", "--tokenizer", model_path)
    made, source = files(tmp_path / "model"), files(pathlib.Path(model_path))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert made[name] == source[name]
    config = json.loads(made["config.json"])
    sizes = [config[n] for n in ("vocab_size", "num_hidden_layers", "hidden_size")]
    assert [*sizes, config["bos_token_id"], config["eos_token_id"]] == [4096, 2, 128, 1, 2]
    backend = opened(str(tmp_path / "model"), max_seq_len=256, cache_tokens=256)
    job = engine.Job("a", (1, 300), 5, ignore_eos=True)
    assert run(backend, job)["a"][-1].new_tokens == 5


def test_a_vocabulary_is_rounded_up(main, script, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    script.make_tokenizer(300).save(str(source / "tokenizer.json"))
    (source / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    main(tmp_path / "model", "--tokenizer", str(source))
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert (config["vocab_size"], config["bos_token_id"], config["eos_token_id"]) == (320, 2, 2)


def test_a_directory_with_content_is_left_alone(main, tmp_path, capsys):
    (tmp_path / "mine").write_text("here")
    with pytest.raises(SystemExit):
        main(tmp_path, *SMALL)
    assert "already exists" in capsys.readouterr().err
    assert files(tmp_path) == {"mine": b"here"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--vocab-size", "260"), "--vocab-size must be at least 261"),
        (("--hidden-size", "100", "--num-heads", "3"), "--hidden-size must be a multiple"),
        (("--num-layers", "0"), "--num-layers must be at least 1"),
        (("--tokenizer", "/nowhere"), "/nowhere has no tokenizer.json"),
        (
            ("--tokenizer", ".", "--vocab-size", "320"),
            "--vocab-size can't be combined with --tokenizer",
        ),
    ],
)
def test_impossible_sizes_are_refused(main, tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit):
        main(tmp_path / "model", *arguments)
    assert message in capsys.readouterr().err


def test_an_interrupted_run_leaves_nothing(script, main, tmp_path, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(script, "save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        main(tmp_path / "model", *SMALL)
    assert list(tmp_path.iterdir()) == []


def test_exl2_is_written_as_exllamav2s_converter_does(main, tmp_path):
    converted = pathlib.Path(__file__).parents[2] / "models" / "demo-exl2"
    config = json.loads((converted / "config.json").read_text())
    sizes = ("hidden_size", "intermediate_size", "vocab_size")
    arguments = [word for n in sizes for word in (f"--{n.replace('_', '-')}", str(config[n]))]
    main(tmp_path / "exl2", "--exl2", "--num-layers", "1", *arguments)
    expected = load_file(converted / "output.safetensors")
    found = load_file(tmp_path / "exl2" / "model.safetensors")
    assert found.keys() == {n for n in expected if "layers." not in n or "layers.0." in n}
    for name, tensor in found.items():
        assert tensor.dtype == expected[name].dtype, name
        if not name.endswith(("q_weight", "q_groups", "q_scale", "q_scale_max")):  # mixed bits
            assert tensor.shape == expected[name].shape, name
    quantization = json.loads((tmp_path / "exl2" / "config.json").read_text())
    assert quantization["quantization_config"]["quant_method"] == "exl2"


def test_exl2_weights_have_the_deviation_of_the_others(script):
    generator = torch.Generator().manual_seed(0)
    tensors = script.quantized(256, 512, 1.0, 4, generator)
    words = tensors["q_weight"].to(torch.int64) & 0xFFFFFFFF
    codes = torch.stack([(words >> shift) & 15 for shift in range(0, 32, 4)]) - 8
    scale = tensors["q_scale_max"][0].float() * (script.SCALE + 1) ** 2 / 256
    assert (codes * scale).std() == pytest.approx(512**-0.5, rel=0.02)


def test_a_shape_is_a_start_that_other_sizes_change(main, tmp_path):
    main(tmp_path / "model", "--shape", "1b", "--num-layers", "1", "--vocab-size", "512")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert (config["hidden_size"], config["num_hidden_layers"]) == (2048, 1)
