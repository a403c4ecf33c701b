"""Replaces the module `exllamav2_ext`. Contains only the host functions that a backend's jobs call.
They do what the C++ code of exllamav2 0.3.2 does, except where their docstrings say otherwise. The
functions of the library's sampler are missing, because our own sampler draws the tokens. Using any
other function raises AttributeError.
"""

from switchyard.engine.backends.exl2.cpu.matching import count_match, partial_strings_match

__all__ = ["count_match", "partial_strings_match"]
