"""Rows of tokens of the kind that the embedded model was trained on, as exllamav3's converter reads
them. Usage: python -m tests.real_model.calibration MODEL_DIR FILE.safetensors
"""

import sys

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from training.quantize import NUM_ROWS, ROW_LENGTH, calibration


def main(path: str, target: str) -> None:
    tokenizer = Tokenizer.from_file(f"{path}/tokenizer.json")
    texts = calibration(tokenizer, 0)
    ids = [i for one in tokenizer.encode_batch(texts, add_special_tokens=False) for i in one.ids]
    rows = torch.tensor(ids[: NUM_ROWS * ROW_LENGTH]).view(NUM_ROWS, ROW_LENGTH)
    save_file({"input_ids": rows}, target)


if __name__ == "__main__":
    main(*sys.argv[1:])
