"""Model directories of strangers, made to harm the server that loads one."""

import json
import os
import shutil

FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
FOR_EVER = "{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}"


def edit(file, **changes):
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def grow(path):
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 50}
    edit(path / "tokenizer.json", normalizer={"type": "Sequence", "normalizers": [step] * 5})


def add_tokens(path):
    added = [{"id": 4096 + i, "content": f"<{i}>", **FLAGS} for i in range(100_000)]
    edit(path / "tokenizer.json", added_tokens=added)


def add_layers(path):
    edit(path / "config.json", num_hidden_layers=2**24)


def nest(path):
    (path / "tokenizer_config.json").write_text("[" * 200_000)


def link_out(path):
    (path.parent / "secret").write_text("the password")
    (path / "chat_template.jinja").symlink_to(path.parent / "secret")


def backtrack(path):
    split = {"type": "Split", "pattern": {"Regex": "(q+)+!"}, "behavior": "Isolated"}
    edit(path / "tokenizer.json", pre_tokenizer={**split, "invert": False})


def think_long(path):
    """Each conversation but the shortest takes as long as it may."""
    loop = "{% if messages|length > 1 %}" + FOR_EVER + "{% endif %}"
    (path / "chat_template.jinja").write_text(loop + "{{ messages[0]['content'] }}")


def widen(path):
    """Merges that fit into the bound of the file, and take more than a gigabyte."""
    whole = json.loads((path / "tokenizer.json").read_text())
    merges = whole["model"]["merges"]
    whole["model"]["merges"] = merges * (3_000_000 // len(merges))
    (path / "tokenizer.json").write_text(json.dumps(whole, separators=(",", ":")))


def pipe(path):
    (path / "tokenizer.json").unlink()
    os.mkfifo(path / "tokenizer.json")


def claim(path):
    """A header of weights that says of itself that it has 10 GB."""
    (path / "model.safetensors").write_bytes((10 << 30).to_bytes(8, "little") + b"{}")


def number(path):
    whole = json.loads((path / "tokenizer.json").read_text())
    whole["model"]["vocab"]["far away"] = 2**31
    (path / "tokenizer.json").write_text(json.dumps(whole))


# How a directory is spoiled, and the one line that a load of it ends with.
KINDS = {
    grow: "tokenizer.json could make a text 6.25e\\+08 times as long; the limit is 64",
    add_tokens: "tokenizer.json has 100000 added tokens; at most 16384 are allowed",
    add_layers: "config.json: num_hidden_layers is 16777216, but must be a whole number from 1",
    nest: "tokenizer_config.json can't be read: it is nested too deeply",
    link_out: "chat_template.jinja is a link out of the model directory",
    backtrack: "reading its tokenizer.json fails: .* retry-limit-in-match over",
    think_long: "reading its chat template takes more than 10 s of CPU time",
    widen: "reading its tokenizer.json takes more than 1 GiB of memory",
    pipe: "tokenizer.json is not a regular file",
    claim: "model.safetensors can't be read: it is not a .safetensors file",
    number: "a token with the id 2147483648; the maximum is",
}


def spoiled(spoil, model_path, path):
    """A copy of a model, spoiled in one way."""
    shutil.copytree(model_path, path / spoil.__name__)
    spoil(path / spoil.__name__)
    return path / spoil.__name__
