"""llama.cpp's own /completion."""

from switchyard.app.formats.format import Format
from switchyard.app.formats.llamacpp.routes import blueprint

FORMAT = Format("llamacpp", blueprint)
