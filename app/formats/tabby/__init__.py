"""TabbyAPI's own routes, except for those of OpenAI's API: models, LoRAs, templates, tokens."""

from switchyard.app.formats.format import Format
from switchyard.app.formats.tabby.routes import blueprint

FORMAT = Format("tabby", blueprint)
