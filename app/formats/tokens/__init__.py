"""Tokenizing, detokenizing and applying the chat template, with llama.cpp's and vLLM's APIs."""

from switchyard.app.formats.format import Format
from switchyard.app.formats.tokens.routes import blueprint

FORMAT = Format("tokens", blueprint)
