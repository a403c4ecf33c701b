"""What each layer is told of positions, beside transformers: sine, cosine and windows."""

import dataclasses
import importlib
import re
import warnings
from types import SimpleNamespace

import pytest
import torch

from switchyard import engine
from switchyard.engine.model.layers import read_layers
from switchyard.engine.model.model_dir import ModelDir
from switchyard.engine.model.rope import Rope, read_rope
from switchyard.engine.model.shape import read_shape
from tests.engine.failing import names
from tests.gpu.architectures.specs import CONTEXT, SPECS, WINDOW

COMPUTED = {name: spec for name, spec in SPECS.items() if spec.refusal is None}
ROTATED = [name for name in COMPUTED if not name.startswith("gpt")]
SERVED = (256, 1024, CONTEXT)  # below and at an original context, and all


@pytest.fixture
def reference(write):
    """transformers' configuration."""
    from transformers import AutoConfig

    def reference(spec):
        path = write(spec.reference or spec.config, "reference")
        with warnings.catch_warnings(action="ignore"):
            return AutoConfig.from_pretrained(path)

    return reference


def attentions(model):
    found = [getattr(module, "attn", module) for module in model.modules]
    return [module for module in found if hasattr(module, "rope_index")]


def transformers_tables(config, max_seq_len, kind=None):
    """Tables of positions from 0 on, (positions, numbers), float32."""
    package = type(config).__module__.replace("configuration", "modeling")
    module = importlib.import_module(package)
    found = [name for name in vars(module) if name.endswith("RotaryEmbedding")]
    own = [name for name in found if "Vision" not in name]
    rotary = getattr(module, own[0])(config)
    positions = torch.arange(max_seq_len)[None]
    more = {"layer_type": kind} if kind else {}
    cos, sin = rotary(torch.zeros(1), positions, **more)
    if config.model_type == "glm4":  # which puts them side by side only when it rotates
        return tuple(one[0].chunk(2, -1)[0].repeat_interleave(2, -1) for one in (sin, cos))
    return sin[0], cos[0]


@pytest.mark.parametrize("name", ROTATED)
def test_each_layers_sine_and_cosine_are_those_of_transformers(build, reference, name):
    from switchyard.engine.backends.exl2.load.attention import set_tables, set_windows

    config = reference(SPECS[name])
    kinds = getattr(config, "layer_types", None) or [None] * config.num_hidden_layers
    is_gemma3 = config.model_type.startswith("gemma3")
    for max_seq_len in SERVED:
        model = build(SPECS[name], max_seq_len)
        set_windows(model)
        set_tables(model)
        [context] = model.device_context
        assert len(context.sin) == len(context.cos) == read_shape(SPECS[name].config).num_tables
        first = model.config.pos_id_index  # Gemma 3's is 1, which no difference of two shows
        for attention, kind in zip(attentions(model), kinds, strict=True):
            found = [tables[attention.rope_index] for tables in (context.sin, context.cos)]
            if config.model_type == "cohere2" and kind == "full_attention":
                assert not found[0].any() and (found[1] == 1).all()
                continue
            kind = kind if is_gemma3 else None
            expected = transformers_tables(config, first + max_seq_len, kind)
            for table, values in zip(found, expected, strict=True):
                values = values[first:]
                assert table.dtype == torch.float16
                assert table.shape == (1, 1, *values.shape)
                rounding = 2**-10 * values.abs().max().clamp(min=1)
                assert ((table[0, 0].float() - values).abs() <= rounding).all()


@pytest.mark.parametrize("name", COMPUTED)
def test_each_layers_window_is_that_of_transformers(build, reference, name):
    from transformers.masking_utils import sliding_window_causal_mask_function

    from switchyard.engine.backends.exl2.load.attention import set_windows

    model, config = build(SPECS[name], CONTEXT), reference(SPECS[name])
    set_windows(model)
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    for attention, kind in zip(attentions(model), kinds, strict=True):
        expected = window if kind == "sliding_attention" else None
        if expected is None or expected >= CONTEXT:
            assert attention.sliding_window == 0
            continue
        allows = sliding_window_causal_mask_function(expected)
        seen = sum(bool(allows(0, 0, torch.tensor(999), torch.tensor(key))) for key in range(1000))
        assert attention.sliding_window == seen - 1  # flash-attn counts the keys before a token's


def test_a_window_as_long_as_any_text_is_none(build):
    from switchyard.engine.backends.exl2.load.attention import set_windows

    model = build(SPECS["mistral-window"], 256)
    set_windows(model)
    assert {one.sliding_window for one in attentions(model)} == {0}


def test_where_attention_has_no_windows_a_longer_context_is_refused(build):
    from switchyard.engine.backends.exl2.load.attention import check_windows

    spec = SPECS["gemma2"]
    check_windows(build(spec, 256).config)
    told = f"max_seq_len 512.*set max_seq_len to {WINDOW} or less"
    with pytest.raises(engine.ModelError, match=told, check=names("max_seq_len")):
        check_windows(build(spec, 512).config)
    check_windows(build(SPECS["llama"], CONTEXT).config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["full_attention"]}, "for each of 5 layers"),
        ({"layer_types": ["chunked_attention"] * 5}, "full_attention or sliding_attention"),
        ({"sliding_window": 0}, "sliding_window of 0 is not a number of tokens"),
    ],
    ids=str,
)
def test_layers_of_unknown_kinds_are_refused(changes, message):
    with pytest.raises(engine.ModelError, match=message):
        read_layers({**SPECS["cohere2"].config, **changes}, 5)


@pytest.mark.parametrize(
    ("original", "expected"),
    [(CONTEXT, 4 * CONTEXT), (CONTEXT // 8, CONTEXT)],  # the second is longer without it
)
def test_a_model_with_yarn_is_served_as_far_as_it_reaches(build, write, original, expected):
    from exllamav2 import ExLlamaV2Config

    from switchyard.engine.backends.exl2.load.compatibility import mend

    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": original}
    config = ExLlamaV2Config()
    config.model_dir = write({**SPECS["llama"].config, "rope_scaling": yarn})
    config.prepare(no_tensors=True)
    model_config = ModelDir.read(config.model_dir).config
    mend(config, model_config)
    assert config.max_seq_len == read_shape(model_config).max_seq_len == expected


LONG = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "factor": 4.0}


@pytest.mark.parametrize("settings", [{"factor": 4.0}, LONG], ids=["yarn", "longrope"])
def test_a_factor_of_attention_that_the_model_names_is_taken(settings):
    from switchyard.engine.backends.exl2.load.positions import frequencies

    kind = "longrope" if "long_factor" in settings else "yarn"
    settings = {**settings, "original_max_position_embeddings": 512}
    named = Rope(kind, False, None, {**settings, "attention_factor": 1.5})
    assert frequencies(named, 1e4, 8, 1024)[1] == 1.5
    assert 1.0 < frequencies(Rope(kind, False, None, settings), 1e4, 8, 1024)[1] < 1.5


def test_factors_of_another_number_than_a_head_has_pairs_are_refused():
    from switchyard.engine.backends.exl2.load.positions import frequencies

    rope = Rope("longrope", False, None, {**LONG, "original_max_position_embeddings": 512})
    with pytest.raises(engine.ModelError, match="long_factor must be 8 numbers"):
        frequencies(rope, 1e4, 16, 1024)


@pytest.mark.parametrize("name", SPECS)
def test_each_refusal_names_what_it_is_for_and_what_is_computed_is_read(write, name):
    spec = SPECS[name]
    path = write(spec.config)
    if spec.refusal is None:
        ModelDir.read(path)
        return
    with pytest.raises(engine.ModelError, match=re.escape(spec.refusal)):
        ModelDir.read(path)


def test_a_length_beside_a_stretch_takes_precedence_over_one_inside():
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    config = {"original_max_position_embeddings": 256, "rope_scaling": scaling}
    assert read_rope(config).settings["original_max_position_embeddings"] == 256


def test_the_first_name_of_longrope_is_known():
    lengths = {"original_max_position_embeddings": 256, "max_position_embeddings": 1024}
    scaling = {"type": "su", "short_factor": [1.0], "long_factor": [2.0]}
    assert read_rope({**lengths, "rope_scaling": scaling}).kind == "longrope"


@pytest.mark.parametrize("name", ["qwen2-window", "qwen2vl", "qwen25vl"])
def test_a_qwen_that_does_not_say_has_windows_from_transformers_default_on(reference, name):
    """With 100 layers: the defaults are 28 and 80."""
    told = {"num_hidden_layers": 100, "use_sliding_window": True, "sliding_window": WINDOW}
    config = {**SPECS[name].config, **told}
    del config["max_window_layers"]
    expected = reference(dataclasses.replace(SPECS[name], config=config, reference=None))
    kinds = expected.get_text_config().layer_types
    found = [layer.window for layer in read_layers(config, 100)]
    assert found == [WINDOW if kind == "sliding_attention" else None for kind in kinds]


@pytest.mark.parametrize(
    ("name", "period"), [("cohere2", 3), ("gemma3", 3), ("gemma2", 2)], ids=str
)
def test_a_model_without_a_list_of_layers_may_tell_their_period(name, period):
    """But for Gemma 2, whose period is fixed."""
    config = {**SPECS[name].config, "sliding_window_pattern": 3}
    text = config["text_config"] = {**config.get("text_config", {}), "sliding_window_pattern": 3}
    for told in (config, text):
        told.pop("layer_types", None)
    found = [layer.is_local for layer in read_layers(config, 6)]
    assert found == [i % period != 0 for i in range(1, 7)]


def test_a_scale_and_an_alpha_of_the_operator_are_in_the_tables():
    from switchyard.engine.backends.exl2.load.positions import table

    def sines(**changes):
        plain = {"head_dim": 8, "partial_rotary_factor": 1.0, "max_seq_len": 16}
        plain |= {"rotary_embedding_base": 1e4, "scale_alpha_value": 1.0, "scale_pos_emb": 1.0}
        config = SimpleNamespace(**plain | changes)
        return table(config, Rope("default", False, None, {}), False)[0][0, 0]

    torch.testing.assert_close(sines(scale_pos_emb=2.0)[::2], sines()[:8])
    stretched = sines(rotary_embedding_base=1e4 * 4.0 ** (8 / 6))
    torch.testing.assert_close(sines(scale_alpha_value=4.0), stretched)
