"""Engine threads that are not in this process."""
