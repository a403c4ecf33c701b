"""Forward passes on one GPU as CUDA graphs."""
