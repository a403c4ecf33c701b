"""Matrix products of our own for EXL2 weights, in place of exllamav2's."""
