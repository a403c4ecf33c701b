"""Our own matrix products for EXL2 weights, which replace exllamav2's."""
