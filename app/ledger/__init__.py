"""What each API key has used, kept in an SQLite file."""
