"""The embedded model, as it is in the repository."""

import random
import warnings

import pytest
import tokenizers
import torch

from switchyard.engine.model.model_dir import ModelDir
from switchyard.engine.model.tokenizer import Tokenizer
from tests.conftest import DEMO, ROOT
from training import evaluate
from training.conversations import document
from training.tokens import encode

if torch.cuda.is_available():
    pytest.skip("the CPU backend refuses a machine with a GPU", allow_module_level=True)


@pytest.fixture(scope="module")
def prompt():
    """512 tokens of conversations."""
    tokenizer = tokenizers.Tokenizer.from_file(f"{DEMO}/tokenizer.json")
    r = random.Random(0)
    token_ids = [t for ids, _ in encode(tokenizer, [document(r) for _ in range(64)]) for t in ids]
    return token_ids[:512]


def test_its_logits_are_those_of_transformers(prompt):
    from tests.engine.small_llama import Scenario

    with warnings.catch_warnings(action="ignore"):
        import transformers

        transformers.utils.logging.disable_progress_bar()  # it would leave a thread
        theirs = transformers.AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32)
        with torch.inference_mode():
            expected = theirs(torch.tensor([prompt])).logits[0]
    ours = Scenario.of(DEMO).forward([(0, prompt, [3, 1])])["logits"][0]
    difference = (ours - expected).abs().max().item()
    print(f"largest difference of a logit: {difference:.2e}")
    assert expected.abs().max() > 5
    assert difference < 1e-3


def test_transformers_render_and_encode_a_chat_alike(prompt):
    with warnings.catch_warnings(action="ignore"):
        import transformers

        theirs = transformers.AutoTokenizer.from_pretrained(DEMO)
    from switchyard.app.chat.template import ChatTemplate, Conversation

    model_dir = ModelDir.read(DEMO)
    tokenizer = Tokenizer(model_dir)
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is the capital of France?"},
    ]
    text = ChatTemplate(model_dir).render(Conversation(messages), tokenizer.escape)
    expected = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == expected
    expected_ids = theirs(expected, add_special_tokens=False)["input_ids"]
    assert list(tokenizer.encode_template(text, 512)) == expected_ids


def test_its_files_are_small():
    assert (ROOT / "models" / "demo" / "model.safetensors").stat().st_size <= 15_000_000
    quantized = sum(file.stat().st_size for file in (ROOT / "models" / "demo-exl2").iterdir())
    assert quantized <= 8_000_000


def test_it_scores_as_its_card_says(capsys, monkeypatch):
    """A smaller run of the evaluation than the card's, which takes minutes."""
    monkeypatch.setattr("sys.argv", ["evaluate", DEMO, "--prompts", "20"])
    with pytest.raises(SystemExit) as stopped:
        evaluate.main()
    assert stopped.value.code == 0, capsys.readouterr().out
