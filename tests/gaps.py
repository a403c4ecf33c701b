"""Write a copy of a model that can fill gaps: FROM TO. Its last tokens stand for the parts of such
a prompt, by StarCoder's names; what it writes into a gap is as before.
"""

import json
import pathlib
import shutil
import sys

NAMES = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<fim_pad>"]


def add_gap_tokens(path):
    """Adds tokens for gaps to a model whose last tokens nothing else is made of."""
    file = path / "tokenizer.json"
    content = json.loads(file.read_text())
    model = content["model"]
    del model["merges"][-len(NAMES) :]
    names = {token_id: token for token, token_id in model["vocab"].items()}
    for i, name in enumerate(NAMES, len(names) - len(NAMES)):
        del model["vocab"][names[i]]
        model["vocab"][name] = i
        like = content["added_tokens"][0]
        content["added_tokens"].append({**like, "id": i, "content": name})
    file.write_text(json.dumps(content))
    return content


if __name__ == "__main__":
    source, target = map(pathlib.Path, sys.argv[1:])
    shutil.copytree(source, target)
    add_gap_tokens(target)
