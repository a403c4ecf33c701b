"""Which job runs next, and for how long."""
