"""OpenAI's wire format: /v1/completions, /v1/chat/completions."""

from switchyard.app.formats.format import Format
from switchyard.app.formats.openai.routes import blueprint

FORMAT = Format("openai", blueprint)
