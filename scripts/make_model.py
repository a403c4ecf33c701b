"""Write a Llama with random weights in Hugging Face layout, to try, test or measure a server.

Its text is noise, but everything else is real: a byte-level BPE tokenizer trained on the Python
sources on this machine, special tokens, and a chat template. exllamav2 can also load the model on a
GPU if the head dimension (hidden size / heads) is 64 or 128, the hidden size is a multiple of 128,
and the vocabulary is a multiple of 32. With --exl2, the matrices are written directly in the format
of exllamav2's conversion, with 4 bits per weight, and 6 in the head. They are as fast as a
converted model's matrices.

With --tokenizer, the tokenizer and the chat template come from another model's directory.
"""

import argparse
import json
import os
import shutil
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

PAD, BOS, EOS, START, END = SPECIAL = ("<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")

CHAT_TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
{%- if message['role'] not in ('system', 'user', 'assistant') %}
{{- raise_exception('unknown role ' ~ message['role']) }}
{%- endif %}
{{- '<|im_start|>' ~ message['role'] ~ '\\n' ~ message['content'] ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}"""

CORPUS_BYTES = 1 << 20  # of source text for the tokenizer's training

SIZES = (
    *("hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads"),
    *("vocab_size", "max_positions"),
)
SHAPES = {
    "tiny": (128, 256, 2, 2, 1, 4096, 8192),
    "small": (256, 512, 4, 4, 2, 4096, 2048),
    "1b": (2048, 5632, 22, 32, 4, 32000, 8192),  # TinyLlama's
    "8b": (4096, 14336, 32, 32, 8, 128256, 8192),  # Llama 3's
}

BITS, HEAD_BITS = 4, 6  # per weight, with --exl2
QUANTIZATION = {"quant_method": "exl2", "version": "0.3.2", "bits": BITS, "head_bits": HEAD_BITS}
GROUP_SIZE = 128  # inputs that share a scale
SCALE = 10  # of every group, from 0 to 15; exllamav2 multiplies by (it + 1) squared, over 256


def make_model(directory: Path, args: argparse.Namespace) -> None:
    """Writes the model next to `directory` first, so that an interrupted run doesn't leave an
    incomplete model.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        os.chmod(temporary, 0o755)
        files = (
            write_tokenizer(temporary, args) if args.tokenizer is None else copied(temporary, args)
        )
        save_file(make_tensors(args), temporary / "model.safetensors", {"format": "pt"})
        os.chmod(temporary / "model.safetensors", 0o644)
        for name, content in files.items():
            (temporary / name).write_text(json.dumps(content, indent=2) + "\n", "utf-8")
        temporary.rename(directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_tokenizer(directory: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Writes the model's own tokenizer.json. Returns the other files that the model needs."""
    tokenizer = make_tokenizer(args.vocab_size)
    tokenizer.save(str(directory / "tokenizer.json"))
    ids = {token: tokenizer.token_to_id(token) for token in SPECIAL}
    return {
        "config.json": model_config(args, ids[BOS], ids[EOS], ids[PAD]),
        "generation_config.json": {
            "bos_token_id": ids[BOS],
            "eos_token_id": [ids[EOS], ids[END]],
            "pad_token_id": ids[PAD],
        },
        "tokenizer_config.json": tokenizer_config(args),
    }


def copied(directory: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Copies a tokenizer with its templates, and adapts the vocabulary size to it. Returns
    config.json.
    """
    for pattern in ("tokenizer*.json", "chat_template.*"):
        for file in sorted(args.tokenizer.glob(pattern)):
            shutil.copyfile(file, directory / file.name)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    args.vocab_size = -(-(max(tokenizer.get_vocab().values()) + 1) // 32) * 32
    config = json.loads((directory / "tokenizer_config.json").read_text("utf-8"))

    def token_id(name: str) -> int | None:
        token = config.get(name)
        token = token["content"] if isinstance(token, dict) else token
        found: int | None = tokenizer.token_to_id(token) if token else None
        return found

    eos = token_id("eos_token")
    bos = token_id("bos_token")  # some models have none; exllamav2 needs one
    return {"config.json": model_config(args, eos if bos is None else bos, eos, None)}


def make_tokenizer(vocab_size: int) -> Tokenizer:
    """Trains a byte-level BPE tokenizer in which every id has text. If the sources yield too few
    tokens, words that encoding never produces fill the vocabulary.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([corpus()], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    content = json.loads(tokenizer.to_str())
    vocab = content["model"]["vocab"]
    number = 0
    while len(vocab) < vocab_size:
        vocab.setdefault(f"Ġword{number}", len(vocab))
        number += 1
    return Tokenizer.from_str(json.dumps(content))


def corpus() -> str:
    texts = []
    size = 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        texts.append(path.read_text("utf-8", errors="replace"))
        size += len(texts[-1])
        if size > CORPUS_BYTES:
            break
    return "\n".join(texts)


def make_tensors(args: argparse.Namespace) -> dict[str, torch.Tensor]:
    """Returns tensors, scaled so that activations keep their size from layer to layer."""
    generator = torch.Generator().manual_seed(args.seed)
    hidden, inner = args.hidden_size, args.intermediate_size
    head_dim = hidden // args.num_heads

    def random(outputs: int, inputs: int, scale: float = 1.0) -> torch.Tensor:
        values = torch.randn(outputs, inputs, generator=generator)
        return values.mul_(scale / inputs**0.5).half()

    def matrix(
        name: str, outputs: int, inputs: int, scale: float = 1.0, bits: int = BITS
    ) -> dict[str, torch.Tensor]:
        if not args.exl2:
            return {f"{name}.weight": random(outputs, inputs, scale)}
        return {
            f"{name}.{part}": tensor
            for part, tensor in quantized(outputs, inputs, scale, bits, generator).items()
        }

    def ones() -> torch.Tensor:
        return torch.ones(hidden, dtype=torch.float16)

    residual = (2 * args.num_layers) ** -0.5
    tensors = {"model.embed_tokens.weight": random(args.vocab_size, hidden, hidden**0.5)}
    for i in range(args.num_layers):
        layer = f"model.layers.{i}."
        tensors |= {
            f"{layer}input_layernorm.weight": ones(),
            **matrix(f"{layer}self_attn.q_proj", args.num_heads * head_dim, hidden),
            **matrix(f"{layer}self_attn.k_proj", args.num_kv_heads * head_dim, hidden),
            **matrix(f"{layer}self_attn.v_proj", args.num_kv_heads * head_dim, hidden),
            **matrix(f"{layer}self_attn.o_proj", hidden, args.num_heads * head_dim, residual),
            f"{layer}post_attention_layernorm.weight": ones(),
            **matrix(f"{layer}mlp.gate_proj", inner, hidden),
            **matrix(f"{layer}mlp.up_proj", inner, hidden),
            **matrix(f"{layer}mlp.down_proj", hidden, inner, residual),
        }
    tensors["model.norm.weight"] = ones()
    # Logits must be far enough apart that greedy text doesn't depend on a float's last bit.
    tensors |= matrix("lm_head", args.vocab_size, hidden, 3.0, HEAD_BITS)
    return tensors


def quantized(
    outputs: int, inputs: int, scale: float, bits: int, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """A matrix in EXL2's format, with random codes. Each code stands for its value minus 2 ** (bits
    - 1). The weights have the same standard deviation as the float16 weights. The mean of the
    layers' weights is 0, because otherwise a constant direction would grow in each layer.
    """
    num_groups = inputs // GROUP_SIZE
    values = torch.arange(2**bits, dtype=torch.float64) - 2 ** (bits - 1)
    codes = torch.randint(
        *(-(2**31), 2**31, (inputs * bits // 32, outputs)), dtype=torch.int32, generator=generator
    )
    if bits == BITS:  # code 0, which has no opposite, becomes the code of value 0
        is_zero = ~(codes | codes >> 1 | codes >> 2 | codes >> 3) & 0x11111111
        codes |= is_zero << 3
        values[0] = 0
    deviation = float(values.std(correction=0))
    scale_max = scale / inputs**0.5 / deviation * 256 / (SCALE + 1) ** 2
    starts = [i * GROUP_SIZE * bits // 32 for i in range(num_groups)]
    eight_scales = int.from_bytes(bytes([SCALE * 0x11] * 4), "little", signed=True)
    return {
        "q_weight": codes,
        "q_groups": torch.tensor([n for start in starts for n in (bits, start)]).short(),
        "q_invperm": torch.randperm(inputs, generator=generator).int(),
        "q_scale": torch.full((num_groups, outputs // 8), eight_scales, dtype=torch.int32),
        "q_scale_max": torch.full((num_groups,), scale_max).half(),
    }


def model_config(
    args: argparse.Namespace, bos: int | None, eos: int | None, pad: int | None
) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": args.hidden_size,
        "intermediate_size": args.intermediate_size,
        "num_hidden_layers": args.num_layers,
        "num_attention_heads": args.num_heads,
        "num_key_value_heads": args.num_kv_heads,
        "head_dim": args.hidden_size // args.num_heads,
        "vocab_size": args.vocab_size,
        "max_position_embeddings": args.max_positions,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "pad_token_id": pad,
        "torch_dtype": "float16",
        **({"quantization_config": QUANTIZATION} if args.exl2 else {}),
    }


def tokenizer_config(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": args.max_positions,
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "add_bos_token": True,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "dir", type=Path, metavar="DIR", help="the new or empty directory to write to"
    )
    parser.add_argument(
        "--tokenizer",
        type=Path,
        metavar="DIR",
        help="the model whose tokenizer*.json files to copy",
    )
    parser.add_argument("--shape", choices=SHAPES, help="default: small, or tiny with --tokenizer")
    for name in SIZES:
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=int, metavar="N", help="default: that of --shape"
        )
    parser.add_argument("--exl2", action="store_true", help="write quantized weights, for a GPU")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the weights")
    args = parser.parse_args()
    if args.tokenizer is not None:
        if args.vocab_size is not None:
            parser.error("--vocab-size can't be combined with --tokenizer, which sets it")
        for name in ("tokenizer.json", "tokenizer_config.json"):
            if not (args.tokenizer / name).is_file():
                parser.error(f"{args.tokenizer} has no {name}")
    shape = args.shape or ("small" if args.tokenizer is None else "tiny")
    for name, default in zip(SIZES, SHAPES[shape], strict=True):
        if getattr(args, name) is None:
            setattr(args, name, default)
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    smallest = len(SPECIAL) + 256
    if args.vocab_size < smallest:
        parser.error(f"--vocab-size must be at least {smallest}, for special tokens and all bytes")
    if args.hidden_size % args.num_heads or args.num_heads % args.num_kv_heads:
        parser.error(
            "--hidden-size must be a multiple of --num-heads, and --num-heads of --num-kv-heads"
        )
    if args.exl2 and (args.hidden_size % GROUP_SIZE or args.intermediate_size % GROUP_SIZE):
        parser.error(f"--exl2: sizes must be multiples of {GROUP_SIZE}")
    if args.dir.exists() and (not args.dir.is_dir() or any(args.dir.iterdir())):
        parser.error(f"{args.dir} already exists")
    return args


def main() -> None:
    args = parse_args()
    make_model(args.dir, args)
    weights = "EXL2 weights" if args.exl2 else "weights"
    print(
        f"{args.dir}: Llama of {args.num_layers} layers, hidden size {args.hidden_size}, "
        f"{args.vocab_size} tokens, random {weights} from seed {args.seed}"
    )


if __name__ == "__main__":
    main()
