"""Engines that several servers share, each in a process of its own, which another starts."""
