"""Copies of a model whose tags of thoughts and calls are tokens of their own, or plain text."""

import json
import shutil

TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
LAYOUTS = {"plain": None, "special": True, "added": False}  # tags, and whether they are special


def lay_out(layout, path, target, tags=TAGS, spelled=TAGS):
    """Path of the copy. `spelled`: tags that the chat template spells."""
    target = shutil.copytree(path, target)
    is_special = LAYOUTS[layout]
    if is_special is not None:
        spec = json.loads((target / "tokenizer.json").read_text())
        vocab, merges = spec["model"]["vocab"], spec["model"]["merges"]
        del merges[-len(tags) :]
        last = sorted(vocab, key=vocab.get)[-len(tags) :]
        flags = dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False)
        for word, tag in zip(last, tags, strict=True):
            token_id = vocab.pop(word)
            one = {"id": token_id, "content": tag, "special": is_special, **flags}
            spec["added_tokens"].append(one)
        (target / "tokenizer.json").write_text(json.dumps(spec))
    config = json.loads((target / "tokenizer_config.json").read_text())
    config["chat_template"] += "{% if false %}" + " ".join(spelled) + "{% endif %}"
    (target / "tokenizer_config.json").write_text(json.dumps(config))
    return str(target)
