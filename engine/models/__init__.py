"""The table of models, which maps names to engines, and the loading and unloading of engines."""
