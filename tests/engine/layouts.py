"""Copies of a model's tokenizer that differ in how they know the tags of thoughts and calls."""

import json
import pathlib
import shutil

TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
LAYOUTS = ("plain", "special", "added")


def copy_with_tags(source, target, layout):
    """A copy of the model at `source`, its tags `plain` text, `special` tokens or `added` ones
    that are not special. They take the places of its last tokens.
    """
    shutil.copytree(source, target)
    if layout == "plain":
        return target
    path = pathlib.Path(target) / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary, merges = tokenizer["model"]["vocab"], tokenizer["model"]["merges"]
    del merges[-len(TAGS) :]
    last = sorted(vocabulary, key=vocabulary.get)[-len(TAGS) :]
    for text, tag in zip(last, TAGS, strict=True):
        token_id = vocabulary.pop(text)
        vocabulary[tag] = token_id
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        token = {"id": token_id, "content": tag, **flags, "special": layout == "special"}
        tokenizer["added_tokens"].append(token)
    path.write_text(json.dumps(tokenizer))
    return target
