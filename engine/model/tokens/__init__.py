"""The tokens of a tokenizer: their bytes, their text, and which of them control the model."""
