"""Requests to llama.cpp's /infill. Pure."""

from typing import Any, ClassVar

from pydantic import Field

from switchyard import engine
from switchyard.app.formats.llamacpp.parse import LlamaCppOptions
from switchyard.app.request.infill import infill
from switchyard.app.request.infill_forms import Extra, Gap
from switchyard.app.request.neutral import ANY, Table
from switchyard.app.request.prompt_tokens import PromptTokens
from switchyard.app.request.validation import Object, validate


class File(Object):
    place: ClassVar[str] = "input_extra"
    neutral: ClassVar[Table] = {"time": ANY}  # when the editor last used the file

    filename: str = Field("tmp", max_length=1000)
    text: str


class Infill(LlamaCppOptions):
    input_prefix: str = Field(description="The text before the gap.")
    input_suffix: str = Field(description="The text after the gap.")
    input_extra: list[File] = Field(
        default=[],
        max_length=64,
        description="Other files, as context for the model: each has a `text` and a `filename`.",
    )
    prompt: str = Field("", description="The beginning of the text in the gap.")

    @property
    def size(self) -> int:
        files = sum(len(one.filename) + len(one.text) for one in self.input_extra)
        return files + len(self.input_prefix) + len(self.input_suffix) + len(self.prompt)

    def read(self, tokenizer: engine.Tokenizer, max_tokens: int) -> list[PromptTokens]:
        extras = [Extra(one.filename, one.text) for one in self.input_extra]
        gap = Gap(self.input_prefix, self.input_suffix, self.prompt, extras)
        return [infill(tokenizer, gap, max_tokens, "input_suffix")]


def gap(body: dict[str, Any]) -> Infill:
    """Parses a request from its JSON body. Raises BadRequest."""
    return validate(Infill, body)
