"""Replaces the module `exllamav2_ext`. This module contains only the functions for the host that a
backend's jobs call, which do what the C++ code of exllamav2 0.3.2 does, except where their
docstrings say otherwise. Tokens are drawn by our own sampler, so the library's has no functions
here. Using any other function raises AttributeError.
"""

from switchyard.engine.backends.exl2.cpu.matching import count_match, partial_strings_match

__all__ = ["count_match", "partial_strings_match"]
