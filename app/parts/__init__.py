"""What a model writes, read: text, thoughts and calls of tools."""
