"""The table of models: which engine serves which name, and how engines are loaded and unloaded."""
