"""Engines on several machines. Ray Serve places, restarts and scales them. Only this package
imports Ray, and only inside functions or in modules that Ray's processes import.
"""
