"""Engines on several machines, which Ray Serve places, restarts and scales. Only this package
imports Ray, and only inside functions or in modules that Ray's processes import.
"""
