"""The functions that stand for exllamav2's extension on the CPU."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from switchyard.engine.backends.exl2.cpu import extension
from tests.conftest import run_code
from tests.engine.references import random_logits

few = settings(max_examples=60)


# Matching


@few
@given(
    st.lists(st.integers(0, 2), max_size=6),
    st.lists(st.integers(0, 2), max_size=6),
    st.integers(0, 8),
)
def test_count_match_counts_equal_tokens_from_the_left(a, b, max_a):
    expected = 0
    while expected < min(len(a), len(b), max_a) and a[expected] == b[expected]:
        expected += 1
    a, b = torch.tensor([a], dtype=torch.long), torch.tensor([b], dtype=torch.long)
    assert extension.count_match(a, b, max_a) == expected


def match(text, strings):
    packed = [string.encode("utf-32-le") for string in strings]
    offsets = np.cumsum([0] + [len(p) for p in packed]).astype(np.int32)
    return extension.partial_strings_match(
        np.frombuffer(text.encode("utf-32-le"), dtype=np.uint8),
        np.frombuffer(offsets.tobytes(), dtype=np.uint8),
        np.frombuffer(b"".join(packed), dtype=np.uint8),
    )


def expected_match(text, strings):
    for string in strings:
        for i in range(len(text)):
            tail = text[i : i + len(string)]
            if tail == string:
                return i
            if len(tail) < len(string) and string.startswith(tail):
                return -2
    return -1


@settings(max_examples=400)
@given(
    st.text("aé\U0001f600", min_size=1, max_size=7),
    st.lists(st.text("aé\U0001f600", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_partial_strings_match_finds_what_a_scan_of_every_position_finds(text, strings):
    assert match(text, strings) == expected_match(text, strings)


def test_an_empty_stop_string_never_matches():
    assert match("x", ["", "x"]) == 0
    assert match("x", [""]) == -1


# Logits


def test_a_filter_is_filled_with_true():
    tensor = torch.zeros((2, 40), dtype=torch.bool)
    extension.fast_fill_cpu_ones_bool(tensor)
    assert tensor.all()


def test_a_bias_is_added_to_every_row():
    logits = torch.arange(12.0).view(2, 1, 6)
    bias = torch.tensor([1.0, 0, 0, 0, 0, -3.0])
    expected = logits + bias
    extension.fast_fadd_cpu(logits, bias)
    assert torch.equal(logits, expected)


@pytest.mark.parametrize("bias", [torch.zeros(5), torch.zeros(0), torch.zeros(6).double()])
def test_a_bias_that_does_not_fit_is_an_error(bias):
    with pytest.raises(RuntimeError):
        extension.fast_fadd_cpu(torch.zeros(1, 1, 6), bias)


def test_an_exclusive_filter_keeps_the_listed_tokens_in_any_order():
    allowed = torch.ones((2, 6), dtype=torch.bool)
    allowed[0, 3] = False  # by an earlier filter
    extension.logit_filter_exclusive(allowed, [[5, 1, 3, 1], [0]])
    assert allowed[0].nonzero().flatten().tolist() == [1, 5]
    assert allowed[1].nonzero().flatten().tolist() == [0]


@pytest.mark.parametrize("token_ids", [[], [6], [-1, 2]])
def test_an_exclusive_filter_refuses_lists_that_it_would_misread(token_ids):
    with pytest.raises(IndexError):
        extension.logit_filter_exclusive(torch.ones((1, 6), dtype=torch.bool), [token_ids])


def penalized(sequence, row, penalty, sustain, decay, frequency, presence):
    """Token by token, the newest first, as the penalties are defined."""
    row = [float(value) for value in row]
    full = len(sequence) if sustain == -1 else sustain
    seen = set()
    for age, token in enumerate(reversed(sequence)):
        if age >= full + decay:
            break
        fade = 1.0 if age <= full or not decay else 1.0 - (age - full) / decay
        if not 0 <= token < len(row):
            continue
        if token not in seen:
            factor = 1 + (penalty - 1) * fade
            row[token] = row[token] / factor if row[token] > 0 else row[token] * factor
            row[token] -= presence * fade
            seen.add(token)
        row[token] -= frequency * fade
    return row


@settings(max_examples=150)
@given(
    st.lists(st.integers(-1, 9), max_size=30),
    st.floats(0.5, 2.0),
    st.integers(-1, 12),
    st.integers(0, 12),
    st.floats(-1.0, 1.0),
    st.floats(-1.0, 1.0),
)
def test_penalties_apply_and_fade_by_the_place_of_a_token(
    sequence, penalty, sustain, decay, frequency, presence
):
    row = random_logits(8)
    logits = torch.tensor(row).view(1, 1, 8)
    ids = torch.tensor([sequence], dtype=torch.long)
    extension.apply_rep_penalty(ids, penalty, sustain, decay, frequency, presence, logits)
    expected = penalized(sequence, row, penalty, sustain, decay, frequency, presence)
    np.testing.assert_allclose(logits.flatten(), expected, rtol=1e-4, atol=1e-5)


# Installing


def test_importing_the_package_imports_nothing_heavy():
    run_code(
        "import sys, switchyard.engine.backends.exl2.cpu\n"
        "assert not {'torch', 'numpy', 'exllamav2'} & set(sys.modules)"
    )


@pytest.mark.parametrize(
    ("preparation", "told"),
    [
        (
            "sys.modules['torch'] = torch = types.ModuleType('torch')\n"
            "torch.cuda = types.SimpleNamespace(is_available=lambda: True)",
            "CUDA_VISIBLE_DEVICES= ",
        ),
        (
            "importlib.metadata.version = lambda name: '0.3.1'",
            "not 0.3.1: pip install exllamav2==0.3.2",
        ),
        (
            "sys.modules['exllamav2'] = types.ModuleType('exllamav2')",
            "has been imported already",
        ),
    ],
    ids=["a GPU", "version", "imported"],
)
def test_install_refuses_what_it_does_not_stand_for(preparation, told):
    """In a fresh Python."""
    run_code(
        "import sys, types, importlib.metadata\n"
        "from switchyard.engine.backends.exl2 import cpu\n"
        "from switchyard.engine.errors import ModelError\n"
        f"{preparation}\n"
        "try: cpu.install()\n"
        f"except ModelError as error: assert {told!r} in str(error), error\n"
        "else: raise SystemExit('installed')\n"
        "assert 'exllamav2_ext' not in sys.modules"
    )
