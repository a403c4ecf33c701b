"""Engines on several machines: settings, supervisors, Ray."""
