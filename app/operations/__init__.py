"""Operations: API keys, roles, limits, accounts, and logs."""
