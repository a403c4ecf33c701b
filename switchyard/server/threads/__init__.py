"""Which request gets a thread, and for how long."""
