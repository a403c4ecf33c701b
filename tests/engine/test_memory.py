"""Which cache has room on GPUs, by arithmetic: there need not be any."""

import re
import shutil
from types import SimpleNamespace

import pytest
import torch

from switchyard import engine
from switchyard.engine.backends.exl2 import cpu
from switchyard.engine.config import ModelConfig
from switchyard.engine.memory.estimate import GIB, Footprint, Memory
from switchyard.engine.model.footprint import measure
from switchyard.engine.model.loadable import adapter_files, check_loras
from switchyard.engine.model.model_dir import ModelDir
from tests.conftest import DEMO
from tests.engine.failing import names
from tests.hostile import edit

MIB = 2**20
DEMO_EXL2 = f"{DEMO}-exl2"
# 10 layers of 100 MiB; a token takes 40 KiB of float16 cache.
LAYERS = ((50 * MIB, True), (50 * MIB, False)) * 10
MODEL = Footprint(LAYERS, fixed=100 * MIB, num_kv_heads=8, head_dim=128)


def memory(*free, footprints=(MODEL,), context=4096, **config):
    """The memory of GPUs with this many GiB free."""
    model_config = ModelConfig("path", "name", gpu_reserve=0.5, **config)
    return Memory(model_config, footprints, [int(size * GIB) for size in free], context)


@pytest.fixture
def loader(monkeypatch):
    """The loader as on a machine with one GPU, of which `free` bytes are free."""
    cpu.install()
    from switchyard.engine.backends.exl2.cuda import loader
    from switchyard.engine.backends.exl2.load.config import read_config

    state = SimpleNamespace(free=0, module=loader)
    state.read_config = read_config
    state.load = lambda config: loader.load(config, exl2_config(config.path), lambda *_: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (state.free, 2 * state.free))
    return state


def exl2_config(path):
    from exllamav2 import ExLlamaV2Config

    config = ExLlamaV2Config(path)
    config.max_input_len = 512
    return config


@pytest.mark.parametrize("mode", ["float16", "Q8", "Q6", "Q4"])
def test_the_formula_is_the_size_of_exllamav2s_own_tensors(loader, model_path, mode):
    from exllamav2 import ExLlamaV2

    model = ExLlamaV2(exl2_config(model_path))
    [footprint], _ = measure(ModelConfig(model_path, "name"))
    model.cache_map = dict.fromkeys(range(model.config.num_hidden_layers), "cpu")
    cache = loader.module.CACHES[mode](model, max_seq_len=512)
    states = sum(tensor.nbytes for tensor in cache.all_tensors())
    assert footprint.cache(mode, 512) == states
    scratch = [t.nbytes for pair in getattr(cache, "temp_tensors", {}).values() for t in pair]
    assert footprint.beside(mode, 512) - footprint.fixed == sum(scratch)


MODES = ("float16", "Q8", "Q4")
AUTO = {"cache_tokens": "auto"}


@pytest.mark.parametrize(
    ("free", "config", "expected"),
    [
        # 1000 MiB of weights, 100 beside; 16384 tokens: 640 MiB, quantized 340 + 64, 180 + 64.
        (3, {"cache_mode": MODES}, [(mode, 16384) for mode in MODES]),
        (2.1, {"cache_mode": MODES}, [("Q8", 16384), ("Q4", 16384)]),
        (1.9, {"cache_mode": MODES}, [("Q4", 16384)]),
        (300, {**AUTO, "max_batch_size": 2}, [("float16", 8192)]),  # all that a batch can use
        (24, {**AUTO, "max_batch_size": 1, "cache_mode": MODES}, [(mode, 4096) for mode in MODES]),
    ],
)
def test_the_modes_that_have_room_are_tried_in_their_order(free, config, expected):
    assert memory(free, **config).caches() == expected


@pytest.mark.parametrize(
    ("free", "config", "told"),
    [
        (1.7, {"cache_mode": MODES}, "cache_mode Q4 with cache_tokens"),
        (1.5, {"cache_mode": MODES}, r"0\.2 GiB of cache \(Q4, 16384 tokens\)"),
        (1.5, {**AUTO, "cache_mode": ("float16", "Q4")}, "No cache would fit"),
    ],
)
def test_what_has_no_room_is_refused_by_the_smallest_cache_that_is_allowed(free, config, told):
    with pytest.raises(engine.NoRoom, match=told):
        memory(free, **config).caches()


def test_a_refusal_says_what_would_fit():
    with pytest.raises(engine.NoRoom) as caught:
        memory(2.0).caches()
    message = str(caught.value)
    assert "1.0 GiB of weights, 0.6 GiB of cache (float16, 16384 tokens)" in message
    assert "2.0 GiB of the GPUs are free" in message
    tokens = int(re.search(r"fit: .*cache_mode float16 .*?(\d+)(, or |$)", message)[1])
    assert memory(2.0, cache_tokens=tokens).caches() == [("float16", tokens)]
    with pytest.raises(engine.ModelError):
        memory(2.0, cache_tokens=tokens + 256).caches()
    assert "cache_mode Q4 with cache_tokens 16384" in message


def test_auto_takes_what_is_left():
    [(mode, tokens)] = memory(3, cache_tokens="auto").caches()
    assert mode == "float16" and tokens % 256 == 0
    room = 3 * GIB - GIB // 2 - 1100 * MIB
    assert room - 256 * 40960 < tokens * 40960 <= room


def test_auto_prefers_a_mode_that_holds_a_whole_context():
    found = memory(2.1, cache_mode=MODES, context=15000, **AUTO).caches()
    assert [mode for mode, _ in found] == ["Q8", "Q4"]
    [(mode, tokens)] = memory(2.1, cache_mode=MODES, context=90000, **AUTO).caches()
    assert mode == "Q4" and 20000 < tokens < 90000


def test_layers_go_to_the_next_gpu_when_one_is_full():
    assert memory(1.2).place("float16", 4096) == []
    first, second = memory(1.25, 1.25).place("float16", 4096)
    assert second < first <= 0.75 * GIB
    assert first + second == 1000 * MIB + 160 * MIB + 2 * 100 * MIB


def test_a_split_counts_the_weights_alone():
    first, second = memory(3, 3, gpu_split=(0.61, 3)).place("float16", 4096)
    assert first == 500 * MIB + 5 * 16 * MIB + 100 * MIB
    assert second == first
    for split in ((0.4, 0.4), (0.61,)):
        assert memory(3, 3, gpu_split=split).place("float16", 4096) == []
    assert memory(1.0, 3, gpu_split=(0.61, 3)).place("float16", 16384) == []  # no room for a cache


def test_a_split_is_not_for_the_draft_model():
    draft = Footprint(((50 * MIB, True),), fixed=10 * MIB, num_kv_heads=8, head_dim=128)
    first, second = memory(3, 3, footprints=(draft, MODEL), gpu_split=(0, 3)).place("float16", 4096)
    assert first == 50 * MIB + 16 * MIB + 10 * MIB
    assert second == 1000 * MIB + 160 * MIB + 100 * MIB


def test_positions_that_overflow_in_quantized_caches_are_not_offered():
    """2 ** 31 / 1024 = 2,097,152 tokens."""
    assert memory(400, context=2**22).place("Q4", 2**21) == []
    assert memory(400, context=2**22).place("float16", 2**21)


def test_a_draft_model_takes_its_part():
    small = Footprint(LAYERS[:4], fixed=10 * MIB, num_kv_heads=8, head_dim=128)
    [used] = memory(4, footprints=(small, MODEL)).place("float16", 4096)
    assert used == 1000 * MIB + 160 * MIB + 100 * MIB + 200 * MIB + 32 * MIB + 10 * MIB


def test_the_next_mode_is_tried_where_memory_runs_out_after_all(loader, model_path, monkeypatch):
    tried = []

    def run_out(config, configs, mode, tokens, *_):
        tried.append((mode, tokens))
        if mode != "Q4":
            raise RuntimeError("Insufficient VRAM for model and cache")
        return SimpleNamespace(cache_mode=mode, model=None)

    monkeypatch.setattr(loader.module, "_load", run_out)
    loader.free = 4 * GIB
    config = ModelConfig(model_path, "name", cache_mode=("float16", "Q8", "Q4"), cache_tokens=512)
    assert loader.load(config).cache_mode == "Q4"
    assert tried == [("float16", 512), ("Q8", 512), ("Q4", 512)]
    with pytest.raises(engine.NoRoom, match="less memory than estimated"):
        loader.load(ModelConfig(model_path, "name", cache_mode=("Q6", "Q8")))


def test_a_gpu_that_is_full_is_told_before_anything_is_loaded(loader, model_path):
    with pytest.raises(engine.NoRoom, match="No cache would fit"):
        loader.load(ModelConfig(model_path, "name"))
    with pytest.raises(engine.ModelError, match="gpu_split names 2 GPUs, but there are 1"):
        loader.load(ModelConfig(model_path, "name", gpu_split=(1, 1)))


def test_a_part_of_each_layer_goes_to_each_gpu():
    first, second = memory(2, 1.25, tensor_parallel=True).place("float16", 4096)
    assert first > second > 350 * MIB
    assert first + second == pytest.approx(1160 * MIB + 2 * 100 * MIB, abs=2)
    split = memory(2, 2, tensor_parallel=True, gpu_split=(1, 1)).place("float16", 4096)
    assert split == [680 * MIB, 680 * MIB]


def test_key_value_heads_are_whole():
    """8 on 3 GPUs are 3, 3 and 2; the rest, 500 MiB, goes by the room that they leave."""
    sizes = memory(2, 2, 2, tensor_parallel=True).place("float16", 8192)
    of_heads = (820 * 3 / 8, 820 * 3 / 8, 820 * 2 / 8)
    others = [500 * (1536 - size) / (3 * 1536 - 820) for size in of_heads]
    expected = [(a + b + 100) * MIB for a, b in zip(of_heads, others, strict=True)]
    assert sizes == pytest.approx(expected, abs=8)
    assert not memory(0.6, 0.6, tensor_parallel=True).place("float16", 8192)
    only = memory(2, 2, tensor_parallel=True, gpu_split=(0, 1)).place("float16", 4096)
    assert only == [0, 1260 * MIB]
    assert memory(0.3, 2, tensor_parallel=True).place("float16", 4096) == only  # less than reserved


@pytest.fixture
def spread(loader, monkeypatch):
    """A quantized model of which `changes` are told, for tensor parallelism on several GPUs."""
    loader.free = 4 * GIB

    def spread(num_gpus=2, path=DEMO_EXL2, *, changes=(), keys=(), **config):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
        model_config = ModelConfig(path, "name", tensor_parallel=True, **config)
        exl2_config = loader.read_config(model_config, ModelDir.read(path), "cuda")
        for name, value in dict(changes).items():
            setattr(exl2_config, name, value)
        exl2_config.arch.lm.keys.update(keys)
        loader.module.load(model_config, exl2_config, lambda *_: None)

    return spread


SMALL = "one GPU gets too small a part"


def changed(**changes):
    return {"changes": changes}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (changed(intermediate_size=500), "can't spread LlamaForCausalLM over GPUs: its interm"),
        (changed(partial_rotary_factor=0.5), "its partial_rotary_factor is"),
        (changed(head_dim=32), "its heads together are not as wide"),
        (changed(use_qk_norm=True), "it has norms of queries"),
        ({"keys": {"norm_1_post": ".post_self_attn_layernorm"}}, "it has norms after its layers"),
        ({"num_gpus": 1}, "needs two GPUs"),
        ({"num_gpus": 4}, "2 key/value heads are too few for 4 GPUs"),
        ({"gpu_split": (3, 0)}, "needs two GPUs"),
        # 128 of its 256 hidden sizes; ExLlamaV2 gives none or 256
        ({}, rf"with 3\.5 \+ 3\.5 GiB, {SMALL}"),
        ({"num_gpus": 4, "gpu_split": (1, 2)}, rf"with 1\.0 \+ 2\.0 GiB, {SMALL}"),
        ({"gpu_split": (0.01, 0.01)}, rf"with 0\.0 \+ 0\.0 GiB, {SMALL}"),  # only the cache
    ],
    ids=str,
)
def test_a_model_that_cannot_be_spread_is_refused(spread, wrong, message):
    with pytest.raises(engine.ModelError, match=message):
        spread(**wrong)


def test_what_is_not_exl2_cannot_be_spread(spread, model_path):
    with pytest.raises(engine.ModelError, match="only for EXL2 models"):
        spread(path=model_path)


def test_the_logits_of_a_vocabulary_of_any_size_have_room(loader, tmp_path):
    path = shutil.copytree(DEMO_EXL2, tmp_path / "model")
    edit(path / "config.json", vocab_size=2050)
    config = ModelConfig(str(path), "name", tensor_parallel=True)
    exl2_config = loader.read_config(config, ModelDir.read(str(path)), "cuda")
    room = exl2_config.max_output_len * exl2_config.vocab_size
    assert exl2_config.max_input_len * 2080 <= room < (exl2_config.max_input_len + 1) * 2080


def test_without_flash_attn_one_job_at_a_time_is_warned_of(loader, model_path, monkeypatch, caplog):
    loader.free = 4 * GIB
    monkeypatch.setattr(loader.module.attn, "has_flash_attn_with_paged", False)
    loaded = SimpleNamespace(cache_mode="float16", model=None)
    monkeypatch.setattr(loader.module, "_load", lambda *_: loaded)
    loader.load(ModelConfig(model_path, "name"))
    assert "ONE job at a time" in caplog.text
    for setting in ({"ngram_draft": True}, {"draft_model": model_path}):
        with pytest.raises(engine.ModelError, match=r"need flash-attn 2\.5\.7"):
            loader.load(ModelConfig(model_path, "name", **setting))


CONFIG, BIN, WEIGHTS = "adapter_config.json", "adapter_model.bin", "adapter_model.safetensors"


@pytest.mark.parametrize(
    ("there", "read"),
    [
        ((CONFIG, BIN), [CONFIG, BIN]),
        ((CONFIG, WEIGHTS), [CONFIG, WEIGHTS]),
        ((CONFIG, BIN, WEIGHTS), [CONFIG, BIN]),  # as the library does
        ((BIN, WEIGHTS), None),
        ((CONFIG,), None),
    ],
)
def test_a_lora_has_a_configuration_and_one_file_of_weights(
    loader, model_path, monkeypatch, tmp_path, there, read
):
    monkeypatch.setattr(loader.module, "_load", None)  # nothing is loaded before
    lora = engine.Lora(str(tmp_path), "terse")
    config = ModelConfig(model_path, "name", "cuda", loras=(lora,))
    for name in there:
        (tmp_path / name).write_text("{}")
    if read is not None:
        check_loras(config)
        assert [file.name for file in adapter_files(lora)] == read
        return
    for check in (check_loras, loader.load):
        told = r"LoRA terse: .* has no adapter_config\.json"
        with pytest.raises(engine.ModelError, match=told, check=names("loras")):
            check(config)


def test_a_lora_says_what_is_wrong_with_it(loader, model_path, monkeypatch, tmp_path):
    loader.free = 4 * GIB
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"nothing")
    model = SimpleNamespace(config=exl2_config(model_path))
    loaded = SimpleNamespace(cache_mode="float16", model=model)
    monkeypatch.setattr(loader.module, "_load", lambda *_: loaded)
    config = ModelConfig(model_path, "name", loras=(engine.Lora(str(tmp_path), "terse"),))
    with pytest.raises(engine.ModelError, match="LoRA terse can't be loaded: KeyError: 'r'"):
        loader.load(config)


@pytest.mark.parametrize(
    "setting",
    [
        {"loras": (engine.Lora("x", "x"),)},
        {"tensor_parallel": True},
        {"cache_mode": ("Q8",)},
        {"gpu_split": (1.0,)},
        {"gpu_reserve": 2.0},
        {"rope_alpha": 2.0},
        {"rope_scale": 2.0},
        {"cache_tokens": "auto"},
    ],
    ids=str,
)
def test_what_is_for_gpus_is_refused_without_one(model_path, setting):
    from switchyard.engine.backends import make_backend

    [name] = setting
    with pytest.raises(engine.ModelError, match=name, check=names(name)):
        make_backend(ModelConfig(model_path, "name", device="cpu", **setting))
