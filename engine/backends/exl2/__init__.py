"""ExLlamaV2's dynamic generator as a backend, the same on a GPU and on the CPU."""
