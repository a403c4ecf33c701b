"""OpenAI's Responses API: /v1/responses."""

from switchyard.app.formats.format import Format
from switchyard.app.formats.responses.routes import blueprint

FORMAT = Format("responses", blueprint)
