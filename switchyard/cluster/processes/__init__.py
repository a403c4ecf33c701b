"""The programs that a machine of a cluster keeps running. Independent of Ray."""
