"""/v1/stream: several generations side by side on one WebSocket."""

from switchyard.app.formats.websocket.routes import blueprint

__all__ = ["blueprint"]
