"""The tokens of a tokenizer: their bytes, their text, and whether they control the model."""
