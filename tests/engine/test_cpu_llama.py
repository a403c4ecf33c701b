"""The CPU's Llama and its paged cache, against a dense float64 Llama of whole sequences."""

import json
import pathlib
import types

import pytest
import torch
from safetensors.torch import save_file

from switchyard.engine.backends.exl2 import cpu
from switchyard.engine.errors import ModelError
from tests.engine import dense_llama

if torch.cuda.is_available():
    pytest.skip("the CPU backend refuses a machine with a GPU", allow_module_level=True)

PAGE = 256
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 100,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500.0,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


class Scenario:
    """A model of random weights on disk, loaded, with a cache, and what it should compute."""

    def __init__(self, path, pages=12, dtype=torch.float32, **changes):
        self.config = CONFIG | changes
        self.tensors = dense_llama.random_tensors(self.config, dtype)
        write(path, self.config, self.tensors)
        self._load(path, pages)

    @classmethod
    def of(cls, path, pages=12):
        """Of a model that is there already."""
        scenario = cls.__new__(cls)
        scenario._load(path, pages)
        return scenario

    def _load(self, path, pages):
        self.model = open_model(path)
        self.model.load()
        from switchyard.engine.backends.exl2.cpu.cache import CpuCache

        self.cache = CpuCache(self.model, max_seq_len=pages * PAGE)

    def expected(self, token_ids):
        return dense_llama.logits(self.tensors, self.config, token_ids)

    def forward(self, rows, preprocess_only=False, **arguments):
        """One pass for rows of (tokens already in the cache, new token ids, pages)."""
        from exllamav2.attn_params import PagedParams

        starts = torch.tensor([start for start, _, _ in rows], dtype=torch.int32)
        width = max(len(pages) for _, _, pages in rows)
        table = torch.zeros((len(rows), width), dtype=torch.int32)  # padded as the generator does
        for row, (_, _, pages) in zip(table, rows, strict=True):
            row[: len(pages)] = torch.tensor(pages)
        input_ids = torch.tensor([ids for _, ids, _ in rows])
        params = PagedParams(
            batch_size=len(rows),
            block_index=table,
            cache_seqlens=starts,
            max_cache_seqlen=int(starts.max()),
            page_size=PAGE,
            q_len=input_ids.shape[1],
        )
        return self.model.forward_chunk(
            input_ids, self.cache, params, preprocess_only=preprocess_only, **arguments
        )

    def prefill(self, token_ids, pages, chunk=512):
        for start in range(0, len(token_ids), chunk):
            out = self.forward([(start, token_ids[start : start + chunk], pages)], True)
            assert out == {}


def write(path, config, tensors):
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    save_file(tensors, path / "model.safetensors")


def open_model(path):
    cpu.install()
    from exllamav2 import ExLlamaV2Config
    from exllamav2.stloader import cleanup_stfiles

    from switchyard.engine.backends.exl2.cpu.llama import CpuLlama
    from switchyard.engine.backends.exl2.load.compatibility import mend

    cleanup_stfiles()  # exllamav2 remembers the headers of files by name
    config = ExLlamaV2Config(str(path))
    mend(config, json.loads(pathlib.Path(path, "config.json").read_text()))
    return CpuLlama(config)


def tokens(count, seed=0, vocab_size=100):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab_size, (count,), generator=generator).tolist()


def assert_close(logits, expected):
    vocab_size = expected.shape[-1]
    torch.testing.assert_close(logits[..., :vocab_size].double(), expected, rtol=1e-4, atol=1e-4)
    assert (logits[..., vocab_size:] == -65504.0).all()


@pytest.fixture(scope="module")
def scenario(tmp_path_factory):
    return Scenario(tmp_path_factory.mktemp("llama"))


# What it computes


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
    elif "original_max_position_embeddings" in rope and rope["rope_type"] == "longrope":
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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weights_are_computed_in_float32(tmp_path, dtype):
    scenario = Scenario(tmp_path / "model", dtype=dtype)
    ids = tokens(20)
    assert_close(scenario.forward([(0, ids, [0])])["logits"][0], scenario.expected(ids))


def test_pages_may_move_within_the_cache(scenario):
    from switchyard.engine.backends.exl2.cpu.extension import cache_rotate

    ids = tokens(400)
    scenario.prefill(ids[:-1], [5, 2])
    for tensor in scenario.cache.all_tensors():  # as the generator defragments
        pages = tensor.view(tensor.shape[1] // PAGE, -1)
        cache_rotate(pages, torch.tensor([2, 0, 5]), torch.empty_like(pages[:1]))
    out = scenario.forward([(399, ids[-1:], [0, 5])])["logits"]  # 0 took 5's, 5 took 2's
    assert_close(out[0], scenario.expected(ids)[-1:])


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


# What it refuses, each with one line


def refusal(path, config, tensors):
    write(path, config, tensors)
    with pytest.raises(ModelError) as raised:
        open_model(path).load()
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.fixture(scope="module")
def plain():
    return dense_llama.random_tensors(CONFIG, torch.float16)


Q_PROJ = "model.layers.1.self_attn.q_proj"


def without(tensors, name):
    return {key: value for key, value in tensors.items() if key != name}


@pytest.mark.parametrize("quantized", ["q_weight", "qweight"])
def test_quantized_tensors_are_refused(tmp_path, plain, quantized):
    tensors = without(plain, f"{Q_PROJ}.weight") | {f"{Q_PROJ}.{quantized}": torch.zeros(4, 4)}
    assert f"quantized ({Q_PROJ}.{quantized})" in refusal(tmp_path, CONFIG, tensors)


def test_a_quantization_config_is_refused(tmp_path, plain):
    config = CONFIG | {"quantization_config": {"quant_method": "exl2", "bits": 4.0}}
    assert "the weights are quantized" in refusal(tmp_path, config, plain)


def test_another_architecture_is_refused(tmp_path, plain):
    config = CONFIG | {"architectures": ["MistralForCausalLM"]}
    assert "not MistralForCausalLM" in refusal(tmp_path, config, plain)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"sliding_window": 128}, "sliding_window"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"num_key_value_heads": 3}, "3 key/value heads"),
        ({"head_dim": 15}, "15"),
    ],
)
def test_what_a_plain_llama_does_not_have_is_refused(tmp_path, plain, changes, named):
    assert named in refusal(tmp_path, CONFIG | changes, plain)


@pytest.mark.parametrize("name", [f"{Q_PROJ}.bias", "model.layers.0.mlp.up_proj.bias"])
def test_biases_are_refused(tmp_path, plain, name):
    assert f"biases ({name})" in refusal(tmp_path, CONFIG, plain | {name: torch.zeros(64)})


def test_a_missing_tensor_is_refused(tmp_path, plain):
    write(tmp_path, CONFIG, plain)
    model = open_model(tmp_path)
    # After ExLlamaV2Config has looked for it: a file replaced in between.
    save_file(without(plain, f"{Q_PROJ}.weight"), tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=f"no tensor {Q_PROJ}.weight"):
        model.load()


def test_a_tensor_of_another_shape_is_refused(tmp_path, plain):
    tensors = plain | {"model.norm.weight": torch.ones(47)}
    message = refusal(tmp_path, CONFIG, tensors)
    assert "model.norm.weight is (47,), by config.json it should be (48,)" in message


def test_fewer_layers_than_there_are_is_refused(tmp_path, plain):
    fewer = CONFIG["num_hidden_layers"] - 1
    message = refusal(tmp_path, CONFIG | {"num_hidden_layers": fewer}, plain)
    assert f"num_hidden_layers is {fewer}, and the files have a layer {fewer}" in message


def test_a_tensor_of_another_kind_is_refused(tmp_path, plain):
    tensors = plain | {"model.norm.weight": torch.ones(48, dtype=torch.int32)}
    assert "model.norm.weight is torch.int32" in refusal(tmp_path, CONFIG, tensors)


def test_a_broken_file_is_refused(tmp_path, plain):
    write(tmp_path, CONFIG, plain)
    model = open_model(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelError, match=r"model\.safetensors can't be read"):
        model.load()


def test_lora_and_image_arguments_are_refused(scenario):
    with pytest.raises(ModelError, match="no LoRA"):
        scenario.forward([(0, [1], [0])], loras=[object()])
    with pytest.raises(ModelError, match="no image input"):
        scenario.forward([(0, [1], [0])], indexed_embeddings=[object()])


# Loading and generating


def test_progress_is_told_layer_by_layer(tmp_path, plain):
    write(tmp_path, CONFIG, plain)
    calls = []
    open_model(tmp_path).load(lambda *call: calls.append(call))
    assert calls == [(0, 2), (1, 2), (2, 2)]


def test_unload_releases_the_weights(tmp_path):
    scenario = Scenario(tmp_path / "model")
    scenario.model.unload()
    scenario.model.unload()
    with pytest.raises(AssertionError):
        scenario.forward([(0, [1], [0])])
    scenario.model.load()
    assert_close(scenario.forward([(0, [1], [0])])["logits"][0], scenario.expected([1]))


def test_install_may_be_called_again():
    import sys

    cpu.install()
    extension = sys.modules["exllamav2_ext"]
    assert isinstance(extension, types.ModuleType)
    cpu.install()
    assert sys.modules["exllamav2_ext"] is extension


def test_the_real_generator_gives_concurrent_jobs_the_texts_they_get_alone(model_path):
    model = open_model(model_path)
    model.load()
    from exllamav2 import ExLlamaV2Tokenizer
    from exllamav2.generator import (
        ExLlamaV2DynamicGenerator,
        ExLlamaV2DynamicJob,
        ExLlamaV2Sampler,
    )

    from switchyard.engine.backends.exl2.cpu.cache import CpuCache

    generator = ExLlamaV2DynamicGenerator(
        model=model,
        cache=CpuCache(model, max_seq_len=16 * PAGE),
        tokenizer=ExLlamaV2Tokenizer(model.config),
        max_batch_size=8,
        max_sampling_threads=1,
        filter_background_eval=False,
    )

    def generate(*prompts):
        for i, prompt in enumerate(prompts):
            generator.enqueue(
                ExLlamaV2DynamicJob(
                    input_ids=torch.tensor([prompt]),
                    max_new_tokens=24,
                    gen_settings=ExLlamaV2Sampler.Settings.greedy(),
                    identifier=i,
                )
            )
        completions = [[] for _ in prompts]
        while generator.num_remaining_jobs():
            for result in generator.iterate():
                if "token_ids" in result:
                    completions[result["identifier"]] += result["token_ids"].flatten().tolist()
        return completions

    # Within a page, across its end, two pages, and the same beginning twice.
    lengths = [1, 2, 20, 100, 250, 255, 300, 400]
    prompts = [tokens(length, seed=length % 100, vocab_size=4096) for length in lengths]
    together = generate(*prompts)
    assert [len(completion) for completion in together] == [24] * 8
    assert together == [generate(prompt)[0] for prompt in prompts]
