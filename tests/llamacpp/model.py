"""Write the small model that llama.cpp's tests ask: MODEL_DIR, of random weights.

Its tokens are about as long as those of llama.cpp's own small model, 512 in all, of which the last
are a family's for gaps. It never writes one that ends a text or is no whole character.
"""

import pathlib
import subprocess
import sys

from safetensors.torch import load_file, save_file

from tests.gaps import add_gap_tokens

ROOT = pathlib.Path(__file__).parent.parent.parent
SHAPE = {"vocab-size": 512, "max-positions": 8192, "num-layers": 2}


def make(path):
    sizes = [text for name, value in SHAPE.items() for text in (f"--{name}", str(value))]
    script = ROOT / "scripts" / "make_model.py"
    subprocess.run([sys.executable, script, path, *sizes], check=True)
    content = add_gap_tokens(path)
    vocabulary = content["model"]["vocab"]
    specials = {token["content"] for token in content["added_tokens"]}
    mute(
        path / "model.safetensors", [i for t, i in vocabulary.items() if t in specials or is_odd(t)]
    )


def is_odd(token):
    """Whether it has a byte that no ASCII text has."""
    return any(not (" " < character <= "~" or character in "ĠĊ") for character in token)


def mute(file, token_ids):
    """Their probability is 0: the first value of each state is the same, positive, whatever the
    text, and lowers their logits alone, by some hundreds.
    """
    tensors = load_file(file)
    tensors["model.embed_tokens.weight"][:, 0] = 4.0
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor[0] = 0
    head = tensors["lm_head.weight"]
    head[:, 0] = 0
    head[token_ids, 0] = -200
    save_file(tensors, file, {"format": "pt"})


if __name__ == "__main__":
    make(pathlib.Path(sys.argv[1]))
