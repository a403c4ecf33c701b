"""Replaces the module `exllamav2_ext`. This module contains only the functions for the host, which
do what the C++ code of exllamav2 0.3.2 does, except where their docstrings say otherwise. Using a
function for CUDA tensors raises AttributeError.
"""

from switchyard.engine.backends.exl2.cpu.logits import (
    apply_rep_penalty,
    fast_fadd_cpu,
    fast_fill_cpu_ones_bool,
    logit_filter_exclusive,
)
from switchyard.engine.backends.exl2.cpu.matching import count_match, partial_strings_match
from switchyard.engine.backends.exl2.cpu.sampling import sample_basic

__all__ = [
    "apply_rep_penalty",
    "count_match",
    "fast_fadd_cpu",
    "fast_fill_cpu_ones_bool",
    "logit_filter_exclusive",
    "partial_strings_match",
    "sample_basic",
]
