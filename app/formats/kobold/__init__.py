"""KoboldAI's, KoboldCpp's and text-generation-webui's plain routes."""

from app.formats.kobold.routes import blueprint

__all__ = ["blueprint"]
