"""Makes small changes to the code, one at a time, and runs the tests that should notice."""
