"""Changes the code in small ways, one at a time, and runs the tests that should notice."""
