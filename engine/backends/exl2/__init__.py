"""A backend that uses ExLlamaV2's dynamic generator. The code is the same for GPU and CPU."""
