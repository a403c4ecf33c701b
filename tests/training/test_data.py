"""What the embedded model learns from."""

import collections
import json
import random
import subprocess
import sys

import pytest
from tokenizers import Tokenizer

from tests.conftest import ROOT
from training import evaluate, skills, tokens
from training.conversations import Conversation, document, draw, is_held_out
from training.wording import say


def documents(count, seed="x"):
    r = random.Random(seed)
    return [document(r) for _ in range(count)]


def exchanges(count, seed="x"):
    return [
        exchange
        for item in documents(count, seed)
        if isinstance(item, Conversation)
        for exchange in item.exchanges
    ]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_file(str(ROOT / "models" / "demo" / "tokenizer.json"))


def test_a_template_gives_all_its_wordings_and_no_other():
    r = random.Random(0)
    found = {say(r, "{Hi|Hello{ there|}}, $name!|$name{?|}", name="{A|$b}") for _ in range(500)}
    name = "{A|$b}"
    assert found == {f"Hi, {name}!", f"Hello, {name}!", f"Hello there, {name}!", f"{name}?", name}


def test_unbalanced_braces_are_refused():
    with pytest.raises(ValueError, match="unbalanced"):
        say(random.Random(0), "{a|b}}")


def test_the_same_seed_gives_the_same_documents():
    assert documents(200) == documents(200)
    assert documents(200) != documents(200, "y")


def test_what_is_kept_for_the_evaluation_is_never_trained():
    trained = {exchange.key for exchange in exchanges(5000)} - {""}
    assert not any(is_held_out(key) for key in trained)
    r = random.Random(0)
    for skill in (skills.fact, skills.addition, skills.json_answer, skills.repetition):
        tested = {draw(r, skill, held_out=True).key for _ in range(200)}
        assert tested and not tested & trained


def test_documents_teach_every_skill_and_differ_in_length(tokenizer):
    items = documents(3000)
    lengths = [len(ids) for ids, _ in tokens.encode(tokenizer, items)]
    assert min(lengths) < 25 and max(lengths) > 1000
    assert sum(isinstance(item, str) for item in items) > 100
    assert sum(not isinstance(item, str) and bool(item.system) for item in items) > 300
    answers = [len(e.assistant) for e in exchanges(3000)]
    assert min(answers) < 3 and max(answers) > 500


def test_right_answers_pass_the_evaluation():
    """Each task with the answers that the generator of the data itself gives."""
    r = random.Random(0)
    for name, task in evaluate.TASKS.items():
        for _ in range(100):
            last = task.draw(r).exchanges[-1]
            assert task.is_right(last, evaluate.Answer(last.assistant, 9, True)), (name, last)


def test_wrong_answers_do_not():
    r = random.Random(0)
    for task in evaluate.TASKS.values():
        last = task.draw(r).exchanges[-1]
        assert not task.is_right(last, evaluate.Answer("{wrong", 200, False))


def test_only_answers_and_stories_are_learned(tokenizer):
    exchange = skills.exchange("What is 2 + 2?", "4")
    items = [Conversation("Be brief.", (exchange, exchange)), "Once upon a time."]
    (ids, targets), (story_ids, story_targets) = tokens.encode(tokenizer, items)
    assert tokenizer.decode(ids, skip_special_tokens=False) == (
        "<s><|im_start|>system\nBe brief.<|im_end|>\n"
        + 2 * ("<|im_start|>user\nWhat is 2 + 2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n")
    )
    learned = [token_id for token_id in targets if token_id != tokens.IGNORED]
    assert tokenizer.decode(learned, skip_special_tokens=False) == "4<|im_end|>4<|im_end|>"
    assert story_targets == [tokens.IGNORED, *story_ids[1:]]
    assert tokenizer.decode(story_ids, skip_special_tokens=False) == "<s>Once upon a time.</s>"


def test_rows_hold_whole_documents(tokenizer):
    bos, pad = tokenizer.token_to_id("<s>"), tokenizer.token_to_id("<pad>")
    ends = {tokenizer.token_to_id("</s>"), *tokenizer.encode("\n", add_special_tokens=False).ids}
    rows = list(tokens.rows(tokenizer, "x", 30, 1024))
    assert len(rows) == 30 and {row.shape for row in rows} == {(2, 1024)}
    used = 0
    for row in rows:
        ids = [token_id for token_id in row[0].tolist() if token_id != pad]
        used += len(ids)
        assert ids[0] == bos and ids[-1] in ends
    assert used > 0.9 * 30 * 1024


def test_json_answers_are_json():
    found = collections.Counter(
        type(json.loads(skills.json_answer(random.Random(i)).assistant)) for i in range(300)
    )
    assert set(found) == {dict, list}


@pytest.mark.hardship
def test_a_small_training_run_makes_a_model_that_can_be_scored(tmp_path):
    """A smoke test of the programs: what it has learned is next to nothing."""

    def run(*arguments):
        command = [sys.executable, "-m", *map(str, arguments)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)

    trained = run("training.train", tmp_path / "a", "--small")
    assert trained.returncode == 0, trained.stderr
    losses = [float(line.split()[3].rstrip(",")) for line in trained.stdout.splitlines()[1:]]
    assert losses[-1] < losses[0] - 0.5
    scored = run("training.evaluate", tmp_path / "a", "--prompts", 1)
    assert scored.returncode == 1, scored.stderr
    assert all(name in scored.stdout for name in evaluate.TASKS)
