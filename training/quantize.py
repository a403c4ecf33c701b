"""Convert a model to EXL2: `python -m training.quantize DIR OUT`. Needs a GPU, pandas, fastparquet.

exllamav2's own converter does it, calibrated on documents like those that the model was trained on.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from tokenizers import Tokenizer

from training import tokens
from training.conversations import document

NUM_ROWS, ROW_LENGTH = 64, 2048


def calibration(tokenizer: Tokenizer, seed: int) -> list[str]:
    """Documents with their special tokens, for a little more than all rows."""
    r = random.Random(f"calibration {seed}")
    texts: list[str] = []
    num_tokens = 0
    while num_tokens < 1.1 * NUM_ROWS * ROW_LENGTH:
        for ids, _ in tokens.encode(tokenizer, [document(r) for _ in range(64)]):
            texts.append(tokenizer.decode(ids, skip_special_tokens=False))
            num_tokens += len(ids)
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dir", type=Path, metavar="DIR")
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--bits", type=float, default=4.0, help="a weight")
    args = parser.parse_args()
    import pandas  # only here: others take `calibration`

    tokenizer = Tokenizer.from_file(str(args.dir / "tokenizer.json"))
    with tempfile.TemporaryDirectory() as work:
        parquet = os.path.join(work, "calibration.parquet")
        pandas.DataFrame({"text": calibration(tokenizer, 0)}).to_parquet(
            parquet, engine="fastparquet"
        )
        os.mkdir(os.path.join(work, "job"))
        command = [sys.executable, "-m", "exllamav2.conversion.convert_exl2"]
        command += ["-i", str(args.dir), "-o", os.path.join(work, "job"), "-cf", str(args.out)]
        command += ["-c", parquet, "-r", str(NUM_ROWS), "-l", str(ROW_LENGTH)]
        command += ["-b", str(args.bits), "-hb", "6"]
        sys.exit(subprocess.run(command).returncode)


if __name__ == "__main__":
    main()
