"""llama.cpp's own /completion."""

from app.formats.llamacpp.routes import blueprint

__all__ = ["blueprint"]
