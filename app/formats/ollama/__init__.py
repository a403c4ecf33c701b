"""Ollama's wire format: /api/chat, /api/generate, and the requests that Ollama's clients make about
models.
"""

from switchyard.app.formats.format import Format, Words
from switchyard.app.formats.ollama.errors import OllamaErrorBody, describe, is_spoken
from switchyard.app.formats.ollama.routes import blueprint

FORMAT = Format("ollama", blueprint, Words(is_spoken, describe, OllamaErrorBody))
