"""The logprobs of texts by exllamav2 alone, as JSON. Usage: python -m tests.real_model.exl2_scores
DIR < TEXTS.json
"""

import json
import sys

import torch
from exllamav2 import ExLlamaV2, ExLlamaV2Config, ExLlamaV2Tokenizer


@torch.inference_mode()
def main(path: str) -> None:
    config = ExLlamaV2Config(path)
    model = ExLlamaV2(config)
    model.load(progress=False)
    tokenizer = ExLlamaV2Tokenizer(config)
    told = []
    for text in json.load(sys.stdin):
        token_ids = tokenizer.encode(text, add_bos=False)
        logits = model.forward(token_ids).float().cpu()[0, :-1, : config.vocab_size]
        rows = torch.log_softmax(logits, -1)
        told.append(rows.gather(1, token_ids[0, 1:, None])[:, 0].tolist())
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
