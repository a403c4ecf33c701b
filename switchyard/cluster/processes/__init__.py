"""The programs that a machine of a cluster keeps running. Knows nothing of Ray."""
