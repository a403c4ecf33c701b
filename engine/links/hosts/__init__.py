"""Engines that several servers share. Each engine has its own process, which the servers don't
start.
"""
