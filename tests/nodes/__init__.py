"""Engines and servers on several machines, which are network namespaces: scripts/test-nodes."""
