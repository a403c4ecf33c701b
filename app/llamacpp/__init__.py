"""llama.cpp's own /completion."""

from app.llamacpp.routes import blueprint

__all__ = ["blueprint"]
