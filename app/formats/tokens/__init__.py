"""Text to tokens and back, and messages to a prompt, as llama.cpp and vLLM spell it."""

from switchyard.app.formats.format import Format
from switchyard.app.formats.tokens.routes import blueprint

FORMAT = Format("tokens", blueprint)
