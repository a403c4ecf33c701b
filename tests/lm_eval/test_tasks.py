"""lm_eval over /v1/completions: its numbers are those of the model computed directly."""

import json
import pathlib

import pytest
import tokenizers
import torch
from safetensors.torch import load_file

from tests.conftest import DEMO
from tests.engine import dense_llama
from tests.live.conftest import GUNICORN, Server
from tests.lm_eval.evaluated import HERE, evaluate

pytestmark = pytest.mark.lm_eval

TASKS = ("switchyard_facts", "switchyard_stories", "switchyard_sums")
BOS = 1

TOKENIZERS = {  # its own of the model's files, and the server's
    "huggingface": {"tokenizer_backend": "huggingface", "tokenizer": "models/demo"},
    "remote": {"tokenizer_backend": "remote"},
}


@pytest.fixture(scope="module", params=TOKENIZERS)
def samples(request, tmp_path_factory):
    """By task, what lm_eval has asked and got."""
    directory = tmp_path_factory.mktemp("lm_eval")
    server = Server(GUNICORN, directory, model=DEMO).wait_until_ready()
    arguments = {
        "model": "demo",
        "base_url": f"{server.url}/v1/completions",
        **TOKENIZERS[request.param],
    }
    options = ["--model", "local-completions", "--batch_size", "4", "--include_path", HERE]
    found = evaluate(directory, TASKS, arguments, *options)
    assert server.stop() == 0, server.output
    return found


@pytest.fixture(scope="module")
def direct():
    """Each token id's log-softmax and whether it is the likeliest, except the first's."""
    tensors = load_file(f"{DEMO}/model.safetensors")
    config = json.loads((pathlib.Path(DEMO) / "config.json").read_text())

    def score(token_ids):
        logprobs = torch.log_softmax(dense_llama.logits(tensors, config, token_ids), dim=-1)[:-1]
        chosen = torch.tensor(token_ids[1:])
        values = logprobs.gather(1, chosen[:, None])[:, 0]
        return values.tolist(), (logprobs.argmax(-1) == chosen).tolist()

    return score


@pytest.fixture(scope="module")
def encode():
    tokenizer = tokenizers.Tokenizer.from_file(f"{DEMO}/tokenizer.json")
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def arguments_of(sample):
    return [(request["arg_0"], request.get("arg_1")) for request in sample["arguments"].values()]


def test_log_likelihoods_of_choices_are_the_models_own(samples, direct, encode):
    greedy = []
    for sample in samples["switchyard_facts"]:
        assert sample["acc"] == 1.0
        for (context, text), got in zip(
            arguments_of(sample), sample["filtered_resps"], strict=True
        ):
            token_ids = encode(context + text)
            start = len(encode(context)) - 1  # of what is scored, which begins with the second
            values, is_likeliest = direct(token_ids)
            assert float(got[0]) == pytest.approx(sum(values[start:]), abs=1e-3)
            assert got[1] == str(all(is_likeliest[start:]))
            greedy.append(got[1])
    assert greedy.count("True") == 6 and greedy.count("False") == 12


def test_log_likelihoods_of_whole_texts_are_the_models_own(samples, direct, encode):
    lengths = []
    for sample in samples["switchyard_stories"]:
        [(text, _)] = arguments_of(sample)
        token_ids = [BOS, *encode(text)]
        [got] = sample["filtered_resps"]
        assert float(got) == pytest.approx(sum(direct(token_ids)[0]), abs=1e-3)
        lengths.append(len(token_ids))
    assert max(lengths) > 512  # pages, and chunks


def test_what_is_generated_is_what_was_asked_for(samples):
    assert [sample["exact_match"] for sample in samples["switchyard_sums"]] == [1.0] * 3
