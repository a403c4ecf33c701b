"""Links to an engine thread in this process or another process."""
