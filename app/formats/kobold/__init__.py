"""KoboldAI's, KoboldCpp's and text-generation-webui's plain routes."""

from switchyard.app.formats.kobold.routes import blueprint

__all__ = ["blueprint"]
