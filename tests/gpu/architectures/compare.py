"""One model: its logits beside those of transformers in float32, and each token that the backend
takes beside one pass over the whole text.
"""

import random
import warnings
from pathlib import Path

import torch

from switchyard.engine.backends import make_backend
from switchyard.engine.config import ModelConfig
from switchyard.engine.job import Job
from switchyard.engine.messages import Chunk, Failed
from switchyard.engine.sampling import Sampling

LENGTHS = (1, 2, 31, 100, 255, 256, 257, 300, 513, 600, 1500)
BATCHES = (1, 3, 8, 24, 32, 64)
NEW = 48
PIECE, SMALL_PIECE = 512, 16  # tokens of a pass
# Relative error of logits by which a model is another's: float16 stays far below. Experts are
# chosen by numbers that rounding tips over: there it is what transformers' own float16 has, twice.
MOST, MOST_OF_HALF = 0.01, 2.0
# How far a taken token may be below the likeliest, in standard deviations of the logits; and the
# share of tokens that may be further, where EXL2's kernels add in no fixed order: that, or as many
# times the share that the library has beside itself.
MOST_GAP, MOST_BEYOND, MOST_OF_NOISE = 0.1, 0.004, 3.0


def compare(
    path: Path, device: str, max_seq_len: int | None, is_brief: bool, has_experts: bool
) -> dict:
    """What was measured. `is_brief`: logits and two batches alone."""
    batch = 64 if device == "cuda" else 8
    config = ModelConfig(
        str(path),
        path.name,
        device=device,
        max_seq_len=max_seq_len,
        cache_tokens=131072 if device == "cuda" else 16384,
        max_batch_size=batch,
    )
    backend = make_backend(config)
    try:
        info = backend.open()
        rng = random.Random(path.name)
        length = min(1500, info.max_seq_len - 2)
        text = _prompt(rng, length)
        found = {
            "graphs": type(backend._loaded.passes).__name__ == "CapturedPasses",
            "served": info.max_seq_len,
        }
        own = logits(backend, text)
        if (path / "ref").is_dir() or not path.name.endswith("-exl2"):
            wanted = reference(path, device, text).to(own.device)
            found |= errors(own, wanted)
            if has_experts:
                half = reference(path, device, text, torch.float16).to(own.device)
                found["half"] = errors(half, wanted)
                del half
            del wanted
        found["gaps"] = {}
        for num_rows in (3, 24) if is_brief else BATCHES:
            if num_rows > batch:
                continue
            lengths = [n for n in LENGTHS if n + NEW <= info.max_seq_len]
            prompts = [_prompt(rng, rng.choice(lengths)) for _ in range(num_rows)]
            found["gaps"][f"{num_rows} rows"] = gaps(backend, run(backend, prompts))
        if not is_brief:
            shared = _prompt(rng, 600)
            prompts = [shared, shared, shared[:300] + _prompt(rng, 200), shared[:511]]
            taken = [one for prompt in prompts for one in run(backend, [prompt])]
            found["gaps"]["cached prefixes"] = gaps(backend, taken)
            prompts = [_prompt(rng, rng.choice((5, 100, 300))) for _ in range(12)]
            taken = run(backend, prompts, cancelled=4)
            found["gaps"]["beside cancelled"] = gaps(backend, taken)
            found["noise"] = noise(backend, taken)
    finally:
        backend.close()
    return found


def faults(found: dict) -> list[str]:
    """What of it is wrong."""
    half = found.get("half", {})
    told = [
        f"{name} tokens: {found[name]:.4f} off transformers"
        for name in ("at 100", "at the end")
        if found.get(name, 0.0) > MOST + MOST_OF_HALF * half.get(name, 0.0)
    ]
    most = max(MOST_BEYOND, MOST_OF_NOISE * found.get("noise", 0.0))
    for name, values in found["gaps"].items():
        beyond = [gap for gap in values if gap > MOST_GAP]
        if len(beyond) > max(2, len(values) * most):
            told.append(f"{name}: {len(beyond)} of {len(values)} tokens beyond, to {max(beyond)}")
    return told


def logits(backend, token_ids, size=PIECE):
    """Logits of the loaded model, by pages, in passes of `size` tokens; (tokens, vocabulary)."""
    generator, loaded = backend._generator, backend._loaded
    generator.reset_page_table()
    pages = torch.arange(-(-len(token_ids) // 256), dtype=torch.int32)[None]
    parts = []
    for start in range(0, len(token_ids), size):
        piece = torch.tensor([token_ids[start : start + size]])
        begins = torch.tensor([start], dtype=torch.int32)
        params = generator.get_paged_params(1, pages, begins, piece.shape[1])
        computed = loaded.model.forward_chunk(piece, cache=loaded.cache, attn_params=params)
        parts.append(computed["logits"][0].float())
    return torch.cat(parts)[:, : loaded.model.config.vocab_size]


def errors(found, wanted):
    return {
        "at 100": relative(found[60:101], wanted[60:101]),
        "at the end": relative(found[-100:], wanted[-100:]),
    }


def reference(path, device, token_ids, dtype=torch.float32):
    from transformers import AutoModelForCausalLM

    torch.backends.cuda.matmul.allow_tf32 = False
    source = path / "ref" if (path / "ref").is_dir() else path
    with warnings.catch_warnings(action="ignore"):
        model, told = AutoModelForCausalLM.from_pretrained(
            source,
            dtype=dtype,
            attn_implementation="eager",
            experts_implementation="eager",
            output_loading_info=True,
        )
    missing = [name for name in told["missing_keys"] if "lm_head" not in name]
    assert not missing and not told["unexpected_keys"] and not told["mismatched_keys"], told
    with torch.inference_mode():
        inputs = torch.tensor([token_ids], device=device)
        return model.to(device).eval()(inputs, use_cache=False).logits[0].float()


def relative(found, wanted):
    """Error by all rows, each centred, as a softmax sees it."""
    size = min(found.shape[-1], wanted.shape[-1])
    found, wanted = (
        one[:, :size] - one[:, :size].mean(-1, keepdim=True) for one in (found, wanted)
    )
    return ((found - wanted).square().mean() / wanted.square().mean()).sqrt().item()


def run(backend, prompts, cancelled=0):
    """Greedy texts: (prompt, tokens) of each that isn't cancelled on its way."""
    greedy = Sampling(temperature=0.0)
    jobs = [Job(f"job{i}", tuple(p), NEW, greedy, ignore_eos=True) for i, p in enumerate(prompts)]
    waiting, tokens, step = list(jobs), {job.identifier: [] for job in jobs}, 0
    while waiting or backend.num_jobs:
        while waiting and backend.has_room(waiting[0]):
            backend.enqueue(waiting.pop(0))
        step += 1
        if step == NEW // 2:
            for job in jobs[: 2 * cancelled : 2]:
                if job.identifier in backend._jobs:
                    backend.cancel(job.identifier)
                    tokens.pop(job.identifier)
        for event in backend.iterate():
            assert not isinstance(event, Failed), event
            if isinstance(event, Chunk) and event.identifier in tokens:
                tokens[event.identifier] += event.token_ids
    return [(prompts[i], tokens[f"job{i}"]) for i in range(len(jobs)) if f"job{i}" in tokens]


def gaps(backend, taken):
    """How far each token is below the likeliest of one pass over the text, in standard
    deviations of the logits. A wrong position, page or key shows, and rounding hardly.
    """
    found = []
    for prompt, tokens in taken:
        rows = _drawn_from(backend, prompt, tokens)
        found += _below(rows, torch.tensor(tokens, device=rows.device))
    return found


def noise(backend, taken):
    """The share of tokens of which two passes of the library, over the same text in other pieces,
    are as far apart: no neighbour, page or graph of ours has a part in it.
    """
    found = []
    for prompt, tokens in taken:
        likeliest = _drawn_from(backend, prompt, tokens, SMALL_PIECE).argmax(-1)
        found += _below(_drawn_from(backend, prompt, tokens), likeliest)
    return sum(gap > MOST_GAP for gap in found) / len(found)


def _drawn_from(backend, prompt, tokens, size=PIECE):
    """The logits that each of `tokens` was drawn from."""
    vocab_size = backend._tokenizer.get_vocab_size()
    return logits(backend, [*prompt, *tokens[:-1]], size)[len(prompt) - 1 :, :vocab_size]


def _below(rows, chosen):
    """By how many standard deviations those chosen are below the likeliest."""
    below = rows.amax(-1) - rows.gather(1, chosen[:, None])[:, 0]
    return [round(gap, 4) for gap in (below / rows.std(-1)).tolist()]


def _prompt(rng, length):
    return [rng.randrange(300, 2048) for _ in range(length)]
