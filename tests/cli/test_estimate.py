"""`switchyard estimate`: what a model takes, and what fits, as the loader would say it."""

import json
import re
import tomllib

import pytest

from scripts import model_table
from switchyard.cli import estimate as ESTIMATE
from switchyard.cli.estimate import MASTER
from switchyard.engine.config import ModelConfig
from switchyard.engine.memory.estimate import CONTEXT, GIB, Memory
from switchyard.engine.memory.gpus import Gpu
from switchyard.engine.memory.residency import LIBRARIES, host_need
from switchyard.engine.model.footprint import measure
from switchyard.engine.model.shape import read_shape
from switchyard.engine.model.tensors import planned_sizes
from tests.conftest import DEMO

DEMO_EXL2 = f"{DEMO}-exl2"


@pytest.fixture(autouse=True)
def machine_without_gpus(monkeypatch):
    monkeypatch.setattr(ESTIMATE, "gpus", list)


def told(switchyard, *arguments):
    done = switchyard("estimate", DEMO_EXL2, "--json", *arguments)
    return json.loads(done.output), done.exit_code


def test_each_size_is_the_loaders(switchyard):
    found, status = told(switchyard)
    [footprint], _ = measure(ModelConfig(DEMO_EXL2, "name"))
    assert (status, found["format"], found["context"]) == (0, "EXL2 of 4.0 bits", 2048)
    assert [row["cache_mode"] for row in found["cache_modes"]] == ["float16", "Q8", "Q6", "Q4"]
    for row in found["cache_modes"]:
        assert row["weights"] == footprint.weights
        assert row["cache"] == footprint.cache(row["cache_mode"], 2048)
        assert row["work_space"] == footprint.beside(row["cache_mode"], 2048)
        assert row["total"] == row["weights"] + row["cache"] + row["work_space"]
        assert row["fits"] is None and row["most_tokens"] is None


@pytest.mark.parametrize("arguments", [[DEMO_EXL2], [DEMO, "--bits", "4"]])
def test_copies_of_weights_are_told_where_they_have_room(switchyard, arguments):
    found = json.loads(switchyard("estimate", *arguments, "--json", "--gpu", 24).output)
    [footprint], _ = measure(ModelConfig(DEMO_EXL2, "name"))
    assert {row["copies"] for row in found["cache_modes"]} == {sum(footprint.unpacked)}
    lines = switchyard("estimate", *arguments, "--gpu", 24).output
    assert "In addition, for speed: unpacked_weights with 0.0 GiB" in lines
    assert "unpacked_weights" not in switchyard("estimate", DEMO, "--gpu", 24).output  # in float16


def test_context_and_jobs_make_the_cache(switchyard):
    small, _ = told(switchyard, "--context", 512)
    large, _ = told(switchyard, "--context", 512, "--jobs", 100)
    for a, b in zip(small["cache_modes"], large["cache_modes"], strict=True):
        assert b["cache"] == 100 * a["cache"]
    assert (large["context"], large["jobs"]) == (512, 100)
    assert large["cache_modes"][0]["work_space"] > small["cache_modes"][0]["work_space"]


def test_what_fits_is_what_the_loader_takes(switchyard):
    """By the largest cache of each mode: one page more is refused."""
    jobs = ("--context", 2048, "--jobs", 1000)
    found, status = told(switchyard, *jobs, "--gpu", 2)
    config = ModelConfig(DEMO_EXL2, "name", max_seq_len=2048, max_batch_size=1000)
    footprints, _ = measure(config)
    memory = Memory(config, footprints, [2 * GIB - CONTEXT], 2048)
    assert status == 1
    for row in found["cache_modes"]:
        assert row["fits"] is False and 0 < row["most_tokens"] < 2_048_000
        assert memory.place(row["cache_mode"], row["most_tokens"])
        assert not memory.place(row["cache_mode"], row["most_tokens"] + 256)
    found, status = told(switchyard, *jobs, "--gpu", 2, "--gpu", 24)
    assert status == 0 and [row["fits"] for row in found["cache_modes"]] == [True] * 4


def proposed(output):
    """Those that it names, as lines for switchyard.toml."""
    lines = output.partition("\nSettings:\n")[2].splitlines()[:3]
    return tomllib.loads("\n".join(line.strip() for line in lines))


def test_the_conclusion_says_what_to_do(switchyard):
    assert (
        "what fits on a GPU with 24 GiB, add --gpu 24GB" in switchyard("estimate", DEMO_EXL2).output
    )
    fits = switchyard("estimate", DEMO_EXL2, "--gpu", 24, "--context", 1024, "--jobs", 3).output
    expected = {"max_seq_len": 1024, "cache_tokens": 3072, "cache_mode": ["float16"]}
    assert proposed(fits) == expected
    assert "LlamaForCausalLM, EXL2 of 4.0 bits; 3 x 1024 tokens" in fits
    assert "✓ up to 6144 tokens of cache" in fits and " 0.003 " in fits  # of weights
    sums = "GPU 0: 24.0 GiB, minus 0.6 for CUDA and 0.5 reserved = 22.9 GiB for the model\n"
    assert sums in fits
    few = switchyard("estimate", DEMO_EXL2, "--gpu", 1.3, "--jobs", 300)
    assert "! up to" in few.output and "tokens of cache fit: use fewer --jobs" in few.output
    none = switchyard("estimate", DEMO_EXL2, "--gpu", 1).output
    assert "no room for any" in none and "Not even the weights fit" in none


@pytest.fixture
def config_alone(tmp_path):
    """A directory with the config.json of a published model, and no other file."""

    def make(name):
        (tmp_path / name).mkdir(exist_ok=True)
        config = PUBLISHED.get(name) or model_table.config_of(name)
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        return tmp_path / name

    return make


def test_the_largest_context_that_fits_is_told_with_its_settings(switchyard, config_alone):
    arguments = ("estimate", config_alone("Llama 3.1 70B"), "--bits", 2.4, "--gpu", "24GB")
    done = switchyard(*arguments)
    [most] = re.findall(r"! 131,072 tokens don't fit; at most ([\d,]+) do\n", done.output)
    most = int(most.replace(",", ""))
    assert done.exit_code == 0 and 16_000 < most < 24_000
    expected = {"max_seq_len": most, "cache_tokens": most, "cache_mode": ["Q4"]}
    assert proposed(done.output) == expected
    for context, status in ((most, 0), (most + 256, 1)):
        done = switchyard(*arguments, "--context", context)
        assert (done.exit_code, "✗" in done.output) == (status, bool(status)), done.output
    assert f"at most {most:,} do: reduce --context" in done.output
    settings = json.loads(switchyard(*arguments, "--json").output)["settings"]
    assert settings == {"max_seq_len": most, "cache_tokens": most, "cache_mode": ["Q4"]}


def test_config_json_alone_needs_bits(switchyard, config_alone):
    path = config_alone("Llama 3.1 70B")
    assert "to use only config.json, add --bits 4.0" in switchyard.told(3, "estimate", path)
    assert switchyard("estimate", path.parent, "--bits", 4).exit_code == 3  # models in it
    (path / "config.json").unlink()
    assert "has no config.json: copy it" in switchyard.told(3, "estimate", path, "--bits", 4)
    (path / "x.gguf").touch()
    assert "GGUF" in switchyard("estimate", path, "--bits", 4).output


def test_bits_are_those_of_the_files(switchyard, config_alone):
    """Planned sizes of an existing model are nearly those of its files."""
    there = told(switchyard)[0]["cache_modes"][0]["weights"]
    planned = told(switchyard, "--bits", 4)[0]["cache_modes"][0]["weights"]
    assert planned == pytest.approx(there, rel=0.1)  # of a few kilobytes each


# Published numbers of parameters; the shape, unless the script of the table has it.
MIXTURE = (4096, 14336, 32, 32, 8, 128, 32000, 32768), {"num_local_experts": 8}
SMALL_GEMMA = (3584, 14336, 42, 16, 8, 256, 256000, 8192), model_table.GEMMA
PUBLISHED = {
    name: {"architectures": [kind], **dict(zip(model_table.NAMES, numbers, strict=True))} | more
    for name, kind, (numbers, more) in (
        ("mixtral-8x7b", "MixtralForCausalLM", MIXTURE),
        ("gemma-2-9b", "Gemma2ForCausalLM", SMALL_GEMMA),
    )
}
PARAMETERS = {
    **{"Llama 3.1 8B": 8_030_261_248, "Llama 3.1 70B": 70_553_706_496},
    **{"Qwen 2.5 32B": 32_763_876_352, "Mistral 7B v0.3": 7_248_023_552},
    **{"Mistral Nemo 12B": 12_247_782_400, "mixtral-8x7b": 46_702_792_704},
    **{"gemma-2-9b": 9_241_705_984},
}


@pytest.mark.parametrize("bits", [2.5, 4, 8])
@pytest.mark.parametrize("name", PARAMETERS)
def test_weights_are_the_published_parameters_times_bits(switchyard, config_alone, name, bits):
    """But the first matrix stays in the host's memory, and the last has 6 bits."""
    path = config_alone(name)
    config = json.loads((path / "config.json").read_text())
    table = config["vocab_size"] * config["hidden_size"]
    inner = PARAMETERS[name] - table * (1 if "gemma" in name else 2)
    done = switchyard("estimate", path, "--bits", bits, "--json")
    weights = json.loads(done.output)["cache_modes"][0]["weights"]
    assert weights == pytest.approx((inner * bits + table * 6) / 8, rel=0.03)


def test_a_draft_model_and_loras_take_their_part(switchyard, config_alone, tmp_path):
    large, small = config_alone("Llama 3.1 70B"), config_alone("Llama 3.2 3B")
    (tmp_path / "lora").mkdir()
    (tmp_path / "lora" / "adapter_config.json").write_text("{}")
    with (tmp_path / "lora" / "adapter_model.safetensors").open("wb") as file:
        file.truncate(GIB // 4 - 2)

    def sizes(*arguments):
        done = switchyard("estimate", large, "--bits", 4, "--gpu", 48, "--json", *arguments)
        found = json.loads(done.output)
        return found["cache_modes"][0]["weights"], found["gpus"][0]

    weights, room = sizes()
    alone = json.loads(switchyard("estimate", small, "--bits", 4, "--json").output)
    both = weights + alone["cache_modes"][0]["weights"]
    assert sizes("--draft", small) == (both, room)
    assert sizes("--lora", tmp_path / "lora") == (weights, room - GIB // 4)
    done = switchyard("estimate", large, "--bits", 4, "--lora", tmp_path)
    assert done.exit_code == 3 and "has no adapter_config.json" in done.output
    two = ("--gpu", 24, "--gpu", 24, "--context", 2048)
    assert sizes(*two, "--tensor-parallel")[0] == weights
    done = switchyard("estimate", large, "--bits", 4, *two, "--tensor-parallel", "--lora", "x")
    assert done.exit_code == 3 and "tensor_parallel can't be combined with LoRAs" in done.output


def test_what_a_server_without_a_gpu_takes_is_told(switchyard):
    need = host_need(ModelConfig(DEMO, "demo")).total(16384)
    size = f"{(MASTER + LIBRARIES + need) / GIB:.1f} GiB"
    said = f"Without a GPU, in float32: {size} of RAM, with 16384 tokens"
    assert said in switchyard("estimate", DEMO).output
    assert "RAM" not in switchyard("estimate", DEMO_EXL2).output  # which the CPU can't serve


@pytest.mark.parametrize("size", ["24", "24GB", "24 GiB", "24g"])
def test_gpus_are_named_as_cards_are(switchyard, size):
    assert told(switchyard, "--gpu", size)[0]["gpus"] == [24 * GIB - CONTEXT]


def test_gpus_of_this_machine_count_where_none_is_given(switchyard, monkeypatch):
    gpu = Gpu("A GPU", (9, 0), 24 * GIB, 20 * GIB, "570.1")
    monkeypatch.setattr(ESTIMATE, "gpus", lambda: [gpu])
    assert told(switchyard)[0]["gpus"] == [20 * GIB - CONTEXT]
    assert told(switchyard, "--gpu", 8)[0]["gpus"] == [8 * GIB - CONTEXT]


def test_what_can_not_be_loaded_has_its_own_status(switchyard):
    assert "hf download no/where" in switchyard.told(3, "estimate", "no/where")
    done = switchyard("estimate", "no/where", "--json")
    assert done.exit_code == 3 and "no/where" in json.loads(done.stdout)["error"]
    said = "switchyard: --context 4096: the model was made for 2048 tokens"
    assert said in switchyard.told(3, "estimate", DEMO_EXL2, "--context", 4096)


def test_the_tables_of_the_documentation_are_what_is_estimated_and_served():
    page = model_table.PAGE.read_text()
    assert "`Olmo3ForCausalLM`" in page and page == model_table.write(page), (
        "run .venv/bin/python scripts/model_table.py"
    )


@pytest.mark.parametrize("name", model_table.SHAPES)
def test_a_shape_has_as_many_weights_as_its_name_says(name):
    sizes = planned_sizes(read_shape(model_table.config_of(name)), 16)
    number = (sum(sizes.values()) - sizes["embed_tokens.weight"]) / 2e9
    said = float(re.search(r"(\d+)B", name)[1])
    assert number == pytest.approx(said, rel=0.08)
