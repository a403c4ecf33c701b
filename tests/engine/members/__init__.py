"""Engines that several servers share come, go, are full and unlike each other."""
