"""llama.cpp's own tests of its server, run against this one: scripts/test-llamacpp."""
