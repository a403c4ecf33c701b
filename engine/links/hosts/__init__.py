"""Engines that several servers share, each in its own process, which the servers don't start."""
