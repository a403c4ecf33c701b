"""The plainest wire format: /generate, for scripts, forms and browsers' EventSource."""

from switchyard.app.formats.plain.routes import blueprint

__all__ = ["blueprint"]
