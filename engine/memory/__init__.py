"""What fits: memory of this process, and its GPUs."""
