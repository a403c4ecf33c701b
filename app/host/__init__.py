"""Switchyard in another Flask application: models of its process, or those of a server."""
