"""The table of models: which engine serves which name, and how engines come and go."""
