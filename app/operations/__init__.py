"""Who may ask for how much, and what is told of it: keys, limits, logs."""
