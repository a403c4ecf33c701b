"""Replaces the module `exllamav2_ext` with its functions for the host. They do what exllamav2
0.3.2's C++ does, except as their docstrings say. The functions for CUDA tensors are missing, so
their use raises AttributeError.
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
