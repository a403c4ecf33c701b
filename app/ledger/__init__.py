"""The ledger: the usage of each API key, in an SQLite file, and budgets."""
