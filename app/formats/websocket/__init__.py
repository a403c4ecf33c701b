"""/v1/stream: several generations side by side on one WebSocket."""

from switchyard.app.formats.format import Format
from switchyard.app.formats.websocket.routes import blueprint

FORMAT = Format("websocket", blueprint)
