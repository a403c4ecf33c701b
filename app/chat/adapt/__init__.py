"""What a model's chat template can do, and how conversations are adapted to its limits."""
