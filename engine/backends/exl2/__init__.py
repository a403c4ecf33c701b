"""ExLlamaV2's dynamic generator as a backend, which is the same on GPU and CPU."""
