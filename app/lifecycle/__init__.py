"""Changes that operators make to models while the server runs, and the events of loads."""
