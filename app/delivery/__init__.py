"""Turns the events of a request into bytes on its socket. Request threads and the sender."""
