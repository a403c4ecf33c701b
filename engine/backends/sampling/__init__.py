"""How the next tokens are drawn. torch alone, for all jobs of a batch at once."""
