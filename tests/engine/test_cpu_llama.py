"""The CPU's Llama beside transformers'."""

import pytest
import torch

from switchyard.engine.errors import ModelError
from tests.engine.small_llama import PAGE, Scenario, assert_close

if torch.cuda.is_available():
    pytest.skip("the CPU backend refuses a machine with a GPU", allow_module_level=True)


@pytest.fixture(scope="module")
def scenario(tmp_path_factory):
    return Scenario(tmp_path_factory.mktemp("llama"))


def tokens(count, seed=0, vocab_size=100):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab_size, (count,), generator=generator).tolist()


@pytest.mark.parametrize("pages", [[0, 1, 2], [7, 2, 9]], ids=["side by side", "scattered"])
def test_a_prompt_in_chunks_has_the_logits_of_the_whole(scenario, pages):
    ids = tokens(600)
    expected = scenario.expected(ids)
    start = 0
    for length in (1, 250, 300, 49):
        out = scenario.forward([(start, ids[start : start + length], pages)])["logits"]
        assert out.shape == (1, length, 128)
        assert out.dtype == torch.float32
        assert_close(out[0], expected[start : start + length])
        start += length


@pytest.mark.parametrize(
    "lengths", [(1, 5, 17, 200), (3, 255, 256, 257, 600)], ids=["short", "long"]
)
@pytest.mark.parametrize("q_len", [1, 3])
def test_sequences_of_different_lengths_decode_in_one_batch(scenario, lengths, q_len):
    free = [11, 0, 5, 3, 4, 8, 1, 9, 10, 2, 7, 6]
    rows = []
    expected = []
    for i, length in enumerate(lengths):
        ids = tokens(length + q_len, seed=i)
        pages = [free.pop() for _ in range(-(-(length + q_len) // PAGE))]
        scenario.prefill(ids[:length], pages)
        rows.append((length, ids[length:], pages))
        expected.append(scenario.expected(ids)[length:])
    assert_close(scenario.forward(rows)["logits"], torch.stack(expected))


def test_many_steps_of_a_batch_cross_page_borders(scenario):
    lengths = [250, 254, 20]
    pages = [[4, 1], [3, 7], [2]]
    sequences = [tokens(length + 12, seed=i) for i, length in enumerate(lengths)]
    for ids, length, blocks in zip(sequences, lengths, pages, strict=True):
        scenario.prefill(ids[:length], blocks)
    expected = [scenario.expected(ids) for ids in sequences]
    for step in range(12):
        rows = [
            (length + step, ids[length + step : length + step + 1], blocks)
            for ids, length, blocks in zip(sequences, lengths, pages, strict=True)
        ]
        wanted = [e[length + step] for e, length in zip(expected, lengths, strict=True)]
        assert_close(scenario.forward(rows)["logits"][:, 0], torch.stack(wanted))


def test_sequences_with_the_same_beginning_share_its_pages(scenario):
    beginning = tokens(PAGE)
    first, second = beginning + tokens(30, seed=1), beginning + tokens(30, seed=2)
    scenario.prefill(first[:-1], [6, 3])
    scenario.forward([(PAGE, second[PAGE:-1], [6, 8])], preprocess_only=True)
    rows = [(len(first) - 1, first[-1:], [6, 3]), (len(second) - 1, second[-1:], [6, 8])]
    expected = torch.stack([scenario.expected(ids)[-1] for ids in (first, second)])
    assert_close(scenario.forward(rows)["logits"][:, 0], expected)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1},
        {"head_dim": 8},  # not hidden size / heads
        {"vocab_size": 96},
        {"tie_word_embeddings": True},
        {"rms_norm_eps": 0.1},
        {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 70.0}},
        {"rope_scaling": {"rope_type": "default"}},
        {"dtype": torch.float16},  # computed in float32
        {"dtype": torch.bfloat16},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_every_shape_of_a_plain_llama_is_served(tmp_path, changes):
    scenario = Scenario(tmp_path / "model", **changes)
    ids = tokens(40, vocab_size=96)
    scenario.prefill(ids[:30], [1])
    assert_close(scenario.forward([(30, ids[30:], [1])])["logits"][0], scenario.expected(ids)[30:])


STRETCHED = {"factor": 4.0, "original_max_position_embeddings": 256}


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "dynamic", "factor": 2.0},
        {**STRETCHED, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        {**STRETCHED, "rope_type": "yarn"},
        {
            **STRETCHED,
            "rope_type": "longrope",
            "short_factor": [1.0 + 0.1 * i for i in range(8)],
            "long_factor": [1.0 + 0.5 * i for i in range(8)],
        },
    ],
    ids=lambda rope: rope["rope_type"],
)
@pytest.mark.parametrize("where", ["rope_scaling", "rope_parameters"])
def test_every_rotary_embedding_is_that_of_transformers(tmp_path, rope, where):
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = {where: rope}
    if where == "rope_parameters":
        settings = {where: {**rope, "rope_theta": 500.0}, "rope_theta": None}
    elif rope["rope_type"] == "longrope":
        settings["original_max_position_embeddings"] = 256
    scenario = Scenario(tmp_path / "model", **settings)
    config = LlamaConfig.from_pretrained(tmp_path / "model", attn_implementation="eager")
    reference = LlamaForCausalLM(config).eval()
    reference.load_state_dict(scenario.tensors)
    ids = tokens(600)
    scenario.prefill(ids[:590], [0, 1, 2])
    logits = scenario.forward([(590, ids[590:], [0, 1, 2])])["logits"][0]
    with torch.inference_mode():
        expected = reference(torch.tensor([ids])).logits[0, 590:].double()
    torch.testing.assert_close(logits[:, :100].double(), expected, rtol=1e-3, atol=1e-3)


def test_a_part_of_a_page_may_be_copied_to_another(scenario):
    ids = tokens(60)
    scenario.prefill(ids, [4])
    scenario.cache.copy_states(
        scenario.cache, 4 * PAGE, 50, 9 * PAGE, 50, from_row=0, from_rows=1, to_row=0, to_rows=1
    )
    other = ids[:50] + tokens(10, seed=3)
    out = scenario.forward([(50, other[50:], [9])])["logits"]
    assert_close(out[0], scenario.expected(other)[50:])


def test_token_ids_and_positions_out_of_range_never_read_beyond_a_table(scenario):
    with pytest.raises(IndexError):
        scenario.forward([(0, [3, 100], [0])])
    with pytest.raises(IndexError):
        scenario.forward([(1024, [3], [0, 1, 2, 3, 4])])
    expected = scenario.expected([0])
    assert_close(scenario.forward([(0, [-1], [0])])["logits"][0], expected)


def test_lora_and_image_arguments_are_refused(scenario):
    for argument, told in (("loras", "LoRAs"), ("indexed_embeddings", "images")):
        with pytest.raises(ModelError, match=f"does not support {told}"):
            scenario.forward([(0, [1], [0])], **{argument: [object()]})
