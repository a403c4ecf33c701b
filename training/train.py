"""Train the embedded model: `python -m training.train DIR`. One H200 for six minutes.

`--small` is a smoke test for two CPU cores: a minute, and a model that has learned next to nothing.
Data and first weights follow from the seed alone; so do the results, on one kind of device.
"""

import argparse
import json
import math
import multiprocessing
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch.nn import functional

from training import tokens
from training.llama import Llama

ROW_LENGTH = 2048
SHARD = 64  # rows that one worker makes at a time


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dir", type=Path, metavar="DIR", help="where the model is written")
    parser.add_argument("--small", action="store_true", help="a smoke test")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1900)
    parser.add_argument("--rows", type=int, default=64, help="of 2048 tokens, in a step")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rate", type=float, default=2e-3, help="highest learning rate")
    args = parser.parse_args()
    if args.small:
        args.steps, args.rows, args.layers = 4, 1, 2
    return args


def model_config(tokenizer: Tokenizer, num_layers: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": tokenizer.get_vocab_size(),
        "max_position_embeddings": ROW_LENGTH,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": tokenizer.token_to_id(tokens.BOS),
        "eos_token_id": tokenizer.token_to_id(tokens.EOS),
        "pad_token_id": tokenizer.token_to_id(tokens.PAD),
        "torch_dtype": "float16",
    }


def _make_shard(args: tuple[str, str, int]) -> numpy.ndarray:
    tokenizer_json, seed, num_rows = args
    tokenizer = Tokenizer.from_str(tokenizer_json)
    return numpy.stack(list(tokens.rows(tokenizer, seed, num_rows, ROW_LENGTH)))


def batches(tokenizer: Tokenizer, args: argparse.Namespace) -> Iterator[torch.Tensor]:
    """(rows, 2, length), each of documents never seen before; made by worker processes."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    shard = min(SHARD, args.rows)
    num_shards = -(-args.steps * args.rows // shard)
    work = ((tokenizer.to_str(), f"train {args.seed} {i}", shard) for i in range(num_shards))
    with multiprocessing.get_context("spawn").Pool(max(1, (os.cpu_count() or 2) - 1)) as pool:
        waiting: list[torch.Tensor] = []
        for rows in pool.imap(_make_shard, work):
            waiting.append(torch.from_numpy(rows))
            if sum(map(len, waiting)) >= args.rows:
                rows = torch.cat(waiting)
                waiting = [rows[args.rows :]]
                yield rows[: args.rows]


def loss_of(model: torch.nn.Module, batch: torch.Tensor, bos: int) -> torch.Tensor:
    """Mean negative log-likelihood a learned token. Nobody attends to another document."""
    ids, targets = batch[:, 0].long(), batch[:, 1].long()
    number = (ids == bos).cumsum(1)
    mask = (number[:, :, None] == number[:, None, :]).tril()[:, None]
    logits = model(ids[:, :-1], mask[:, :, :-1, :-1])
    return functional.cross_entropy(
        logits.flatten(0, 1).float(), targets[:, 1:].flatten(), ignore_index=tokens.IGNORED
    )


def train(tokenizer: Tokenizer, args: argparse.Namespace) -> Llama:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.use_deterministic_algorithms(True)
    torch.set_float32_matmul_precision("high")
    model = Llama(model_config(tokenizer, args.layers))
    model.reset(args.seed)
    model.to(device)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters on {device}", flush=True)
    decayed = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=args.rate,
        betas=(0.9, 0.98),
        fused=device.type == "cuda",
    )
    warmup = max(1, args.steps // 30)
    begin = time.monotonic()
    bos = tokenizer.token_to_id(tokens.BOS)
    for step, batch in zip(range(1, args.steps + 1), batches(tokenizer, args), strict=False):
        done = max(0.0, (step - warmup) / max(1, args.steps - warmup))
        rate = (
            args.rate * min(1.0, step / warmup) * (0.02 + 0.98 * (1 + math.cos(math.pi * done)) / 2)
        )
        for group in optimizer.param_groups:
            group["lr"] = rate
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = loss_of(model, batch.to(device, non_blocking=True), bos)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % max(1, args.steps // 50) == 0 or step == args.steps:
            seconds = time.monotonic() - begin
            print(f"step {step}: loss {loss.item():.5f}, {seconds:.0f} s", flush=True)
    return model


def write(directory: Path, model: Llama, tokenizer: Tokenizer) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor.half().cpu().contiguous() for name, tensor in model.state_dict().items()
    }
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    tokenizer.save(str(directory / "tokenizer.json"))
    bos, eos, pad, end = (
        tokenizer.token_to_id(token) for token in (tokens.BOS, tokens.EOS, tokens.PAD, tokens.END)
    )
    files: dict[str, Any] = {
        "config.json": model.config,
        "generation_config.json": {
            "bos_token_id": bos,
            "eos_token_id": [eos, end],
            "pad_token_id": pad,
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": ROW_LENGTH,
            "bos_token": tokens.BOS,
            "eos_token": tokens.EOS,
            "pad_token": tokens.PAD,
            "add_bos_token": True,
            "clean_up_tokenization_spaces": False,
            "chat_template": tokens.CHAT_TEMPLATE,
        },
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, indent=2) + "\n", "utf-8")


def main() -> None:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # asked for by determinism
    args = parse_args()
    vocab_size = 1024 if args.small else 2048
    tokenizer = tokens.train_tokenizer(vocab_size, args.seed, 1_000 if args.small else 40_000)
    write(args.dir, train(tokenizer, args), tokenizer)


if __name__ == "__main__":
    main()
