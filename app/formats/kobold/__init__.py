"""KoboldAI's, KoboldCpp's and text-generation-webui's own routes."""

from switchyard.app.formats.format import Format
from switchyard.app.formats.kobold.routes import blueprint

FORMAT = Format("kobold", blueprint)
