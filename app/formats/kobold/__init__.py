"""KoboldAI's, KoboldCpp's and text-generation-webui's plain routes."""

from switchyard.app.formats.format import Format
from switchyard.app.formats.kobold.routes import blueprint

FORMAT = Format("kobold", blueprint)
