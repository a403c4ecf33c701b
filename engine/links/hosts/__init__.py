"""Engines that several servers share, each in its own process, which another starts."""
