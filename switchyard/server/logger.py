"""gunicorn's own log, in the format of the other logs."""

from typing import Any

from gunicorn.glogging import Logger

from switchyard.app.operations.logs import JsonFormatter


class JsonLogger(Logger):  # type: ignore[misc]
    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        for handler in self.error_log.handlers:
            handler.setFormatter(JsonFormatter())
