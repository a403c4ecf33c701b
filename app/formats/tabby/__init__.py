"""TabbyAPI's own routes, beside those of OpenAI's that it has: the model, its LoRAs, tokens."""

from switchyard.app.formats.format import Format
from switchyard.app.formats.tabby.routes import blueprint

FORMAT = Format("tabby", blueprint)
