"""Stored responses: turns of conversations, kept in memory for clients that continue them."""
