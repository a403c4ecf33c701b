"""From the events of a request to bytes on its socket. Request threads and the sender."""
