"""The tokens of a tokenizer: their bytes, the text that they make, those that control the model."""
