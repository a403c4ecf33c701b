"""The parts that all backends of ExLlama models share, independent of the library that computes."""
