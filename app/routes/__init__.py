"""Routes of the server itself: health, requests, kept streams, models, metrics, usage, drain."""
