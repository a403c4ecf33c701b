"""The parts that all backends of ExLlama models share, regardless of the library that computes
them.
"""
