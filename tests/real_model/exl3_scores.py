"""The logprobs of texts by exllamav3 alone, as JSON. Usage: python -m tests.real_model.exl3_scores
DIR < TOKEN_IDS.json
"""

import json
import sys

import torch
from exllamav3 import Config, Model


@torch.inference_mode()
def main(path: str) -> None:
    config = Config.from_directory(path)
    model = Model.from_config(config)
    model.load(device="cuda:0", progressbar=False)
    told = []
    for text in json.load(sys.stdin):
        token_ids = torch.tensor([text])
        logits = model.forward(token_ids, {"attn_mode": "flash_attn_nc"})
        rows = torch.log_softmax(logits[0, :-1, : config.vocab_size].float().cpu(), -1)
        told.append(rows.gather(1, token_ids[0, 1:, None])[:, 0].tolist())
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
