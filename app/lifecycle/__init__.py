"""What operators change of models while the server runs, and the events of loads."""
