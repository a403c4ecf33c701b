"""A backend that uses ExLlamaV2's dynamic generator. It is the same on GPU and CPU."""
