"""The parts shared by all backends for ExLlama models, regardless of the library that computes
them.
"""
