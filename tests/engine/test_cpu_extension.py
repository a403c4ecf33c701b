"""The functions that stand for exllamav2's extension on the CPU."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from switchyard.engine.backends.exl2.cpu import extension
from tests.conftest import run_code

# Matching


@settings(max_examples=60)
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
            "is already imported",
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
