"""Where an engine thread runs: in this process, or in one of its own."""
