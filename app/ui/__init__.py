"""The page at `/`, where the server is its own application's: chat, and how the server stands."""
