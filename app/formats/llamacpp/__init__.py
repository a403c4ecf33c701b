"""llama.cpp's own routes: /completion, /infill, /props and /slots."""

from switchyard.app.formats.format import Format
from switchyard.app.formats.llamacpp.routes import blueprint

FORMAT = Format("llamacpp", blueprint)
