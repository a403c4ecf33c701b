"""Routes of the server itself: health, requests, kept streams, its end."""
