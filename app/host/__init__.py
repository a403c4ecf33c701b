"""Generates text for a host application's views, with models in its process or on a server."""
