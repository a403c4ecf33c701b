"""What a model's chat template can do, and what is done for a conversation where it can't."""
