"""llama.cpp's own /completion."""

from switchyard.app.formats.llamacpp.routes import blueprint

__all__ = ["blueprint"]
