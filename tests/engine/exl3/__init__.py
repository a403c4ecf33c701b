"""The backend for EXL3 models."""
