"""What the views of one application work with."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import flask

from switchyard import engine
from switchyard.app.chat.template import ChatTemplate
from switchyard.app.config import Settings
from switchyard.app.delivery.sender import Sender
from switchyard.app.delivery.transcripts import Transcripts

KEY = "switchyard"


@dataclass(frozen=True, slots=True)
class Services:
    settings: Settings
    models: engine.Models
    chat_templates: dict[str, ChatTemplate]  # by model name
    websockets: threading.Semaphore  # a place for each that may be open
    terminate: Callable[[], None] | None  # does what SIGTERM does, at once or soon
    transcripts: Transcripts = field(default_factory=Transcripts)
    sender: Sender = field(default_factory=Sender)


def services() -> Services:
    """Those of the application that serves the current request."""
    found: Services = flask.current_app.extensions[KEY]
    return found
