"""The parts shared by all backends for ExLlama models, whichever library computes the models."""
