"""Models on GPUs, as ExLlamaV2 loads them."""
