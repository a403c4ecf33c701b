"""A small real model, SmolLM2-135M-Instruct, on the CPU and on a GPU: scripts/test-real-model."""
