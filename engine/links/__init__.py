"""Ways to an engine thread: in this process, or in one of its own."""
