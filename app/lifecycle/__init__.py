"""Changes that operators make to models while the server runs, and events that report loads."""
