"""The programs that a machine in a cluster keeps running. Independent of Ray."""
