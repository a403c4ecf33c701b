"""The plain wire format: /generate, for scripts, forms and browsers' EventSource."""

from switchyard.app.formats.format import Format
from switchyard.app.formats.plain.routes import blueprint

FORMAT = Format("plain", blueprint)
