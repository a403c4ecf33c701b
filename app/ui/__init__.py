"""The page at `/` of the server's own application: chat, and the server's state."""
