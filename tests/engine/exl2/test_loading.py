"""The real generator is loaded, and closed."""

import itertools
import json
import pathlib
import shutil
import threading
from types import SimpleNamespace

import pytest

from switchyard import engine
from switchyard.engine.backends.exl.loaded import LoadedModel
from switchyard.engine.messages import ModelInfo
from tests.engine.exl2.drive import Faults, prompt
from tests.engine.forced import ending, exl2_backend, run
from tests.scripted import job


def test_a_context_of_less_than_a_chunk_limits_the_chunk(model_path):
    """ExLlamaV2 on CUDA limits the longest input to the context, and insists that a chunk fits."""
    backend = exl2_backend(model_path, max_seq_len=256, max_chunk_size=512)
    load = backend._load

    def load_as_on_cuda(config, exl2_config, progress):
        exl2_config.max_input_len = min(exl2_config.max_input_len, exl2_config.max_seq_len)
        return load(config, exl2_config, progress)

    backend._load = load_as_on_cuda
    assert backend.open().max_seq_len == 256
    assert ending(run(backend, job("a", 6, prompt=prompt(1, 250)))["a"]).last.prompt_tokens == 250
    backend.close()


def test_a_gap_below_a_prompts_least_part_ends_the_load(opened, model_path, monkeypatch):
    """Here each look at the clock is 10 ms after the last."""
    ticks = itertools.count(step=0.01)
    clock = SimpleNamespace(monotonic=lambda: next(ticks))
    monkeypatch.setattr("switchyard.engine.backends.exl2.backend.time", clock)
    message = r"max_gap_ms is 9, but 16 tokens of a prompt take 10\.0 ms"
    with pytest.raises(engine.ModelError, match=message):
        exl2_backend(model_path, max_gap_ms=9.0).open()
    opened(max_gap_ms=11.0)


@pytest.mark.parametrize("content", [b"", b"no weights", b"\x08" + bytes(7) + b"{}      more"])
def test_weights_that_are_damaged_are_named(model_path, tmp_path, content):
    path = shutil.copytree(model_path, tmp_path / "model")
    (path / "model.safetensors").write_bytes(content)
    with pytest.raises(engine.ModelError, match=r"model\.safetensors can't be read"):
        exl2_backend(str(path)).open()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cache_tokens": 1024}, ["context of 2048 tokens", "cache of 1024"]),
        ({"unpacked_weights": 4.0}, ["unpacked_weights is 4", "no float16 copies"]),
    ],
)
def test_what_cannot_be_as_set_is_told(opened, caplog, settings, words):
    opened(**settings)
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert all(word in record.getMessage() for word in words)


def test_a_context_that_the_cache_just_holds_is_not_warned_of(caplog):
    loaded = LoadedModel(None, SimpleNamespace(max_seq_len=512), "float32")
    loaded.warn_of_a_small_cache(512)
    assert not caplog.records
    loaded.warn_of_a_small_cache(513)
    assert caplog.records


def test_all_that_was_loaded_is_unloaded_and_first_what_refers_to_the_model():
    unloaded = []
    passes, lora, model, draft = (
        SimpleNamespace(
            **dict.fromkeys(("close", "unload"), lambda name=name: unloaded.append(name))
        )
        for name in ("passes", "lora", "model", "draft")
    )
    LoadedModel(model, None, "FP16", passes, draft_model=draft, loras=[lora]).unload()
    assert unloaded.index("passes") < unloaded.index("model") > unloaded.index("lora")
    assert sorted(unloaded) == ["draft", "lora", "model", "passes"]


def test_each_pass_is_given_the_loras_of_the_model(model_path):
    given, lora = [], SimpleNamespace(unload=lambda: None)

    def wrap(forward):
        def note(*args, loras=None, **kwargs):
            given.append(list(loras or ()))
            return forward(*args, **kwargs)

        return note

    backend = exl2_backend(model_path, wrap=wrap, loras=(engine.Lora("/loras/terse", "terse"),))
    load = backend._load

    def load_with_lora(*args):
        loaded = load(*args)
        loaded.loras.append(lora)
        return loaded

    backend._load = load_with_lora
    assert backend.open().loras == ("terse",)
    backend.close()
    assert given and all(loras == [lora] for loras in given)


def test_a_closed_backend_has_no_weights(model_path):
    backend = exl2_backend(model_path)
    backend.open()
    model = backend._generator.model
    assert model._weights is not None
    backend.close()
    backend.close()
    assert model._weights is None


def test_nothing_is_left_of_a_model_that_fails_at_its_first_token(model_path):
    faults, loaded = Faults(), []
    backend = exl2_backend(model_path, wrap=faults)
    load = backend._load
    backend._load = lambda *args: loaded.append(load(*args)) or loaded[-1]
    for _ in range(2):
        faults.left = 1
        with pytest.raises(RuntimeError, match="out of memory"):
            backend.open()
    backend.open()
    assert [one.model is None for one in loaded] == [True, True, False]
    backend.close()


def test_threads_of_a_backend_end_with_it(model_path):
    backend = exl2_backend(model_path)
    before = set(threading.enumerate())
    backend.open()
    own = len(set(threading.enumerate()) - before)
    backend.reload()
    assert len(set(threading.enumerate()) - before) == own > 0
    backend.close()
    assert set(threading.enumerate()) <= before


def test_a_model_tells_what_it_is_and_how_it_is_served(model_path):
    config = json.loads((pathlib.Path(model_path) / "config.json").read_text())
    backend = exl2_backend(model_path, cache_tokens=1024, max_seq_len=512, ngram_draft=True)
    assert backend.open() == ModelInfo(
        max_seq_len=512,
        vocab_size=config["vocab_size"],
        page_size=256,
        num_pages=4,
        device="cpu",
        cache_mode="float32",
        num_draft_tokens=backend._config.num_draft_tokens,
        loras=(),
    )
    backend.close()


def test_a_model_that_fails_at_its_first_prompt_does_not_open(forced):
    def fail(input_ids, is_prefill):
        if is_prefill:
            raise RuntimeError("no kernel for it")

    with pytest.raises(RuntimeError, match="no kernel for it"):
        forced(lambda token_id: {5: 0.0}, fail)


@pytest.mark.parametrize(("eos", "end"), [(None, ("length", 4)), ("</s>", ("stop", 0))])
def test_the_tokenizers_end_token_ends_a_text(opened, model_path, tmp_path, eos, end):
    """Without any, it goes on to the limit."""
    path = shutil.copytree(model_path, tmp_path / "model")
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        content = json.loads((path / name).read_text())
        content |= {"eos_token_id": None, "eos_token": eos if "tokenizer" in name else None}
        (path / name).write_text(json.dumps(content))
    backend = opened(str(path), logits=lambda t: {2: 0.0})
    last = ending(run(backend, job("a", 4))["a"]).last
    assert (last.finish_reason, last.new_tokens) == end
