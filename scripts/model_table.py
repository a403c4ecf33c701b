"""Write two tables in docs/models.md: which model fits on which GPU, according to `switchyard
estimate`, and which architectures ExLlamaV3 serves.

Usage: .venv/bin/python scripts/model_table.py
"""

import json
import pathlib
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from switchyard import engine  # noqa: E402
from switchyard.engine.memory.estimate import CONTEXT, GIB, Footprint  # noqa: E402
from switchyard.engine.memory.plan import each_mode  # noqa: E402
from switchyard.engine.model import exl3  # noqa: E402
from switchyard.engine.model.footprint import measure  # noqa: E402

PAGE = ROOT / "docs" / "models.md"
GPUS = (8, 12, 16, 24, 48, 80)
BITS = (8.0, 6.0, 5.0, 4.0, 3.5, 3.0, 2.5)
TOKENS = 16384

# Values of each config.json: hidden and inner size, layers, heads, key/value heads, head size,
# vocabulary, context; then other settings.
LLAMA, MISTRAL, QWEN = "LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM"
GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "sliding_window": 4096}
EXPERTS = {"num_experts": 128, "moe_intermediate_size": 768, "norm_topk_prob": True}
SHAPES: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "Llama 3.2 3B": (LLAMA, (3072, 8192, 28, 24, 8, 128, 128256, 131072), {}),
    "Mistral 7B v0.3": (MISTRAL, (4096, 14336, 32, 32, 8, 128, 32768, 32768), {}),
    "Llama 3.1 8B": (LLAMA, (4096, 14336, 32, 32, 8, 128, 128256, 131072), {}),
    "Mistral Nemo 12B": (MISTRAL, (5120, 14336, 40, 32, 8, 128, 131072, 131072), {}),
    "Qwen 2.5 14B": (QWEN, (5120, 13824, 48, 40, 8, 128, 152064, 32768), {}),
    "Mistral Small 24B": (MISTRAL, (5120, 32768, 40, 32, 8, 128, 131072, 32768), {}),
    "Gemma 2 27B": ("Gemma2ForCausalLM", (4608, 36864, 46, 32, 16, 128, 256000, 8192), GEMMA),
    "Qwen 3 30B-A3B": (
        "Qwen3MoeForCausalLM",
        (2048, 6144, 48, 32, 4, 128, 151936, 40960),
        EXPERTS,
    ),
    "Qwen 2.5 32B": (QWEN, (5120, 27648, 64, 40, 8, 128, 152064, 32768), {}),
    "Llama 3.1 70B": (LLAMA, (8192, 28672, 80, 64, 8, 128, 128256, 131072), {}),
}
NAMES = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings"),
)


def config_of(name: str) -> dict[str, Any]:
    architecture, numbers, more = SHAPES[name]
    return {"architectures": [architecture], **dict(zip(NAMES, numbers, strict=True)), **more}


def footprints(name: str) -> Iterator[tuple[float, engine.ModelConfig, Footprint]]:
    config = config_of(name)
    tokens = min(TOKENS, config["max_position_embeddings"])
    with tempfile.TemporaryDirectory() as root:
        (pathlib.Path(root) / "config.json").write_text(json.dumps(config))
        for bits in BITS:
            model_config = engine.ModelConfig(root, name, max_seq_len=tokens)
            [footprint], _ = measure(model_config, bits)
            yield bits, model_config, footprint


def best(name: str, models: list[tuple[float, engine.ModelConfig, Footprint]], gpu: int) -> str:
    """The highest number of bits with which a full context fits, in the first cache mode that
    fits.
    """
    free = [gpu * GIB - CONTEXT]
    for bits, config, footprint in models:
        assert config.max_seq_len is not None
        for row in each_mode(config, [footprint], config.max_seq_len, 1, free, TOKENS):
            if row.fits:
                mode = "" if row.cache_mode == "float16" else f", {row.cache_mode}"
                return f"{bits:g}{mode}"
    return "none"


def text() -> str:
    lines = ["| model | GB at 4 bits |" + "".join(f" {gpu} GB |" for gpu in GPUS)]
    lines.append("|---" * (len(GPUS) + 2) + "|")
    for name in SHAPES:
        models = list(footprints(name))
        [weights] = [footprint.weights for bits, _, footprint in models if bits == 4]
        cells = [name, f"{weights / 1e9:.1f}", *(best(name, models, gpu) for gpu in GPUS)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def of_exl3() -> str:
    rows = {
        "served on one GPU": exl3.PLAIN,
        "refused for now, because they keep a state for each sequence": exl3.STATEFUL,
        "refused: other caches, images, draft models, other tensor names": exl3.OTHERS,
        "refused settings": exl3.REFUSED,
    }
    lines = ["| | `architectures` in `config.json` |", "|---|---|"]
    for label, names in rows.items():
        lines.append(f"| {label} | {', '.join(f'`{name}`' for name in names)} |")
    return "\n".join(lines) + "\n"


def write(page: str) -> str:
    """The page with new tables, each between two comments that name it."""
    for name, table in (("what fits", text()), ("what ExLlamaV3 serves", of_exl3())):
        before, begin, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- end of {name} -->\n")
        page = f"{before}{begin}{table}{end}{after}"
    return page


if __name__ == "__main__":
    PAGE.write_text(write(PAGE.read_text()))
