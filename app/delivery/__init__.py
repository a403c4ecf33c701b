"""Delivery: the events of a request become bytes on its socket. Request threads and the sender."""
