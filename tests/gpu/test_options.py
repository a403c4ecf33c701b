"""Caches, splits, guesses, LoRAs, and other ways to load a model on a GPU."""

import gc
import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from switchyard import engine
from switchyard.engine.backends import make_backend
from switchyard.engine.config import Lora, ModelConfig
from switchyard.engine.memory.estimate import Memory
from switchyard.engine.model.footprint import measure
from switchyard.engine.model.model_dir import ModelDir
from switchyard.engine.model.tokenizer import Tokenizer
from tests.conftest import DEMO, ROOT, make_model
from tests.engine.exl2.drive import GREEDY, free_pages
from tests.engine.forced import ending, run
from tests.gpu.gptq import make_gptq
from tests.scripted import job

pytestmark = pytest.mark.gpu

GIB = 2**30
QUESTIONS = [
    "Count from 3 to 40.",
    "Tell me a story.",
    "Repeat this code: 7F3A-9921",
    "Make a list of five fruits.",
    "Hello! What can you do?",
    "My name is Ada. What is my name?",
    "Answer in JSON: a city and its country.",
    "What is the capital of France?",
]


def questions(max_tokens=48):
    tokenizer = Tokenizer(ModelDir.read(DEMO))
    prompts = [f"<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n" for q in QUESTIONS]
    return [
        job(f"job{i}", max_tokens, prompt=tokenizer.encode(text, 2048), sampling=GREEDY)
        for i, text in enumerate(prompts)
    ]


def answers(backend, jobs=None):
    jobs = jobs or questions()
    events = run(backend, *jobs)
    assert free_pages(backend) == backend._generator.max_pages
    return [ending(events[one.identifier]).text for one in jobs]


def num_same(some, others, length=40):
    """Texts that begin alike."""
    same = sum(a[:length] == b[:length] for a, b in zip(some, others, strict=True))
    print(f"{same} of {len(some)} texts begin alike")
    return same


def free_memory(gpu=0):
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(gpu)[0]


def estimated(backend, num_gpus=1):
    """Bytes of copies, and bytes on each GPU, that the backend's model was expected to take."""
    config = backend._config
    footprints, lengths = measure(config)
    memory = Memory(config, footprints, [100 * GIB] * num_gpus, lengths.max_seq_len)
    cache = config.cache_mode[0], config.cache_tokens
    return sum(memory.unpacked(*cache)), memory.place(*cache)


@pytest.mark.parametrize("model", ["demo", "demo-exl2"])
@pytest.mark.parametrize(("mode", "fewest"), [("Q8", 6), ("Q6", 6), ("Q4", 0)])
def test_quantized_caches_give_nearly_the_same_texts(serve, model, mode, fewest):
    path = str(ROOT / "models" / model)
    plain = answers(serve(path))
    backend = serve(path, cache_mode=(mode,))
    assert backend.info.cache_mode == mode
    assert type(backend._loaded.cache).__name__ == f"ExLlamaV2Cache_{mode}"
    assert num_same(answers(backend), plain) >= fewest


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    """Path of a model whose keys of one token are 192 numbers: no multiple of 128."""
    path = str(tmp_path_factory.mktemp("models") / "narrow")
    sizes = ("--hidden-size", "384", "--num-heads", "6", "--num-kv-heads", "3")
    make_model(path, *sizes, "--num-layers", "2")
    return path


@pytest.mark.parametrize("mode", ["float16", "Q8", "Q6", "Q4"])
def test_a_cache_of_any_width_serves_on_when_all_its_pages_were_used(serve, narrow, mode):
    """The library would defragment after that, and its kernel kill the process."""
    backend = serve(narrow, cache_mode=(mode,), cache_tokens=2048)
    for i in range(40):  # in an order of pages that is no longer the cache's
        prompts = {"short": (5 + i,) * 300, "long": (9,) * (300 + 30 * i)}
        run(backend, *(job(n, 2, prompt=ids, sampling=GREEDY) for n, ids in prompts.items()))
    torch.cuda.synchronize()
    assert backend._generator.access_serial > 3 * backend._generator.max_pages
    assert free_pages(backend) == backend._generator.max_pages


def test_gptq_weights_are_read_as_they_are_written(serve, tmp_path):
    quantized, rounded = make_gptq(DEMO, tmp_path)
    assert num_same(answers(serve(quantized)), answers(serve(rounded))) >= 6


def test_a_given_split_gives_the_same_texts(serve):
    assert num_same(answers(serve(gpu_split=(2.0,))), answers(serve())) == len(QUESTIONS)
    with pytest.raises(engine.ModelError, match="no room"):
        serve(gpu_split=(0.01,))


@pytest.fixture(scope="module")
def shapes(tmp_path_factory, larger):
    """Paths of models, and tokens of cache: float16, and EXL2 of 1 and 8 billion parameters."""
    found = {"larger": (larger, 65536)}
    for shape, tokens in (("1b", 4096), ("8b", 8192)):
        path = str(tmp_path_factory.mktemp("models") / shape)
        make_model(path, "--shape", shape, "--exl2")
        found[shape] = (path, tokens)
    return found


@pytest.mark.parametrize("mode", ["float16", "Q8", "Q6", "Q4"])
@pytest.mark.parametrize("shape", ["larger", "1b", "8b"])
def test_the_estimate_is_near_what_is_taken(shapes, shape, mode):
    path, tokens = shapes[shape]
    # In its own process: torch keeps some memory as long as it lives.
    command = [sys.executable, "-m", "tests.gpu.taken", path, mode, str(tokens)]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE)
    found = json.loads(done.stdout.splitlines()[-1])
    print(found)
    assert found["cache"] == pytest.approx(found["estimated_cache"], rel=0.05)
    assert found["most"] == pytest.approx(found["estimated"], rel=0.05)
    beside = found["estimated"] - found["estimated_cache"]
    assert found["most"] - found["cache"] == pytest.approx(beside, rel=0.05)


def test_auto_leaves_the_reserve(serve, larger):
    reserve = free_memory() / GIB - 2
    backend = serve(larger, cache_tokens="auto", gpu_reserve=reserve, max_batch_size=64)
    tokens = backend.info.num_pages * 256
    print(f"{tokens} tokens")
    assert tokens > 32768
    run(backend, job("a", 8, prompt=tuple(range(300, 1500)), sampling=GREEDY))
    assert free_memory() > (reserve - 0.25) * GIB  # what the libraries load themselves


@pytest.mark.skipif(torch.cuda.device_count() > 1, reason="several GPUs have room for the first")
def test_the_next_mode_is_taken_where_the_first_has_no_room(serve, larger, caplog):
    reserve = free_memory() / GIB - 1.2
    backend = serve(larger, cache_mode=("float16", "Q4"), cache_tokens=81920, gpu_reserve=reserve)
    assert backend.info.cache_mode == "Q4"
    assert "no room for a float16 cache; using Q4" in caplog.text
    run(backend, job("a", 8, prompt=tuple(range(300, 1500)), sampling=GREEDY))
    backend.close()
    with pytest.raises(engine.ModelError, match=r"What would fit: .*cache_mode Q4"):
        serve(larger, cache_tokens=2**20, gpu_reserve=reserve)


@pytest.mark.parametrize(
    "guessing",
    [{"ngram_draft": True}, {"draft_model": str(ROOT / "models" / "demo-exl2")}],
    ids=str,
)
def test_guessed_tokens_give_the_same_texts(serve, guessing):
    """A step of several tokens rounds otherwise than one of one, so a text may part."""
    plain, backend = answers(serve(), questions(150)), serve(**guessing)
    assert num_same(answers(backend, questions(150)), plain, length=500) >= 7


def test_loras_change_the_texts_by_their_scaling(serve, tmp_path):
    torch.manual_seed(0)
    weights = {}
    for i in range(8):
        for name, rows, columns in (("q_proj", 256, 256), ("v_proj", 128, 256)):
            key = f"base_model.model.model.layers.{i}.self_attn.{name}"
            weights[f"{key}.lora_A.weight"] = torch.randn(8, columns) * 0.1
            weights[f"{key}.lora_B.weight"] = torch.randn(rows, 8) * 0.5
    save_file(weights, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 8, "lora_alpha": 16}))
    plain = answers(serve())
    backend = serve(loras=(Lora(str(tmp_path), "noise"),))
    assert backend.info.loras == ("noise",)
    assert num_same(answers(backend), plain) <= 2
    assert num_same(answers(serve(loras=(Lora(str(tmp_path), "none", 0.0),))), plain) >= 7


def test_without_flash_attn_one_job_runs_at_a_time(serve, monkeypatch, caplog):
    plain = answers(serve())
    from exllamav2 import attn

    for name in ("has_flash_attn", "has_flash_attn_with_paged"):
        monkeypatch.setattr(attn, name, False)
    backend = serve(max_seq_len=2048, cache_tokens=2048)
    assert "ONE job at a time" in caplog.text
    assert (backend.info.page_size, backend.info.num_pages) == (2048, 1)
    assert backend._loaded.model.config.no_sdpa
    jobs = questions()
    backend.enqueue(jobs[0])
    backend.iterate()
    assert not backend.has_room(jobs[1])
    backend.cancel(jobs[0].identifier)
    assert num_same(answers(backend, jobs), plain) >= 6
    with pytest.raises(engine.InvalidJob, match="flash-attn"):
        backend.enqueue(job("x", 1, prompt=(5, 6, 7), prompt_logprobs=0))


@pytest.mark.parametrize("model", ["demo", "demo-exl2"])
def test_a_model_that_is_unloaded_gives_its_memory_back(model):
    path, used, left = str(ROOT / "models" / model), [], []
    for _ in range(20):
        config = ModelConfig(path, "gpu", device="cuda", cache_mode=("Q8",), cache_tokens=262144)
        backend = make_backend(config)
        backend.open()
        answers(backend)
        held = torch.cuda.memory_allocated()
        backend.close()
        free = free_memory()
        used.append(torch.cuda.mem_get_info(0)[1] - free)
        left.append(torch.cuda.memory_allocated())
        print(f"{held} bytes held, {left[-1]} left, {used[-1]} in use")
    assert used[-1] <= used[0] * 1.01
    assert left[-1] <= left[0] + held // 100
    assert left[-1] < 2**28  # torch keeps 32 MiB for each stream that has multiplied matrices
