"""All architectures that ExLlamaV2 knows, as tiny random models, beside transformers."""
