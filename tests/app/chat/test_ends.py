"""An answer ends where any of the model's files, or its chat template, ends a turn."""

import json
import shutil

import pytest

from tests.app.chat.conftest import URL
from tests.app.chat.test_enforced import STRICT
from tests.conftest import DEMO
from tests.engine.forced import exl2_backend

END = 4  # <|im_end|>
NAMES = {"config.json": "eos_token_id", "generation_config.json": "eos_token_id"}
NAMES["tokenizer_config.json"] = "eos_token"


def with_ends(target, ends):
    """A copy of the demo whose files name these ends; None: nothing."""
    path = shutil.copytree(DEMO, target)
    for (file, name), end in zip(NAMES.items(), ends, strict=True):
        config = json.loads((path / file).read_text())
        config.pop(name, None)
        if end is not None:
            config[name] = end
        (path / file).write_text(json.dumps(config))
    return str(path)


# Each pair of what two of the files may name.
ENDS = [
    (first, (None, 2)[(i + j) % 2], last)
    for i, first in enumerate((None, 2, 4))
    for j, last in enumerate((None, "</s>", "<|im_end|>"))
]


@pytest.mark.parametrize(
    ("ends", "more"),
    [*((ends, {}) for ends in ENDS), *((ends, {"tools": [STRICT]}) for ends in ENDS[::4])],
    ids=str,
)
def test_no_marker_of_a_turn_is_told(make_client, tmp_path, ends, more):
    path = with_ends(tmp_path / "model", ends)
    letter, newline = (open_vocabulary(path)[word] for word in ("H", "Ċ"))
    model = {newline: letter, letter: END, END: letter}
    backend = exl2_backend(path, logits=lambda t: {model.get(t, letter): 9.0})
    client = make_client(backend, path=path, tool_format="hermes")
    request = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9, **more}
    [choice] = client.post(URL, json=request).json["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("H", "stop")
    going_on = client.post(URL, json={**request, "ignore_eos": True}).json
    if not more:
        assert going_on["choices"][0]["message"]["content"].startswith("HH")


def open_vocabulary(path):
    with open(f"{path}/tokenizer.json") as file:
        return json.load(file)["model"]["vocab"]
