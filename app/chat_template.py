"""A model's own chat template, in a sandbox. The only jinja2."""

import json
import re
import urllib.parse
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.filters
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

import engine

# The escape as filters encode it. What a user writes looks otherwise behind them: `%` is encoded
# too, and a backslash doubled.
_IN_URL = urllib.parse.quote(engine.ESCAPE)
_IN_JSON = re.compile(rf"(?<!\\)((?:\\\\)*)\\u{ord(engine.ESCAPE):04x}")


class ChatTemplate:
    """Messages to prompt text, with what Hugging Face's `apply_chat_template` offers a template."""

    def __init__(self, model_dir: engine.ModelDir) -> None:
        """A template that doesn't compile is reported when it is used: completions need none."""
        self._tokens = {
            name: model_dir.special_token(name) or ""
            for name in ("bos_token", "eos_token", "pad_token", "unk_token")
        }
        self._template: jinja2.Template | None = None
        self._error: str | None = "the model has no chat template; use /v1/completions"
        if model_dir.chat_template is not None:
            try:
                self._template = _environment().from_string(model_dir.chat_template)
            except jinja2.TemplateError as error:
                self._error = f"the model's chat template is broken: {error}"

    def render(self, messages: Sequence[dict[str, str]], escape: Callable[[str], str]) -> str:
        """The prompt up to where the assistant answers. `escape` takes every text of the user.

        Raises engine.InvalidJob for messages that the template refuses or fails on.
        """
        if self._template is None:
            raise engine.InvalidJob(str(self._error), "messages")
        escaped = [
            {key: value if key == "role" else escape(value) for key, value in message.items()}
            for message in messages
        ]
        try:
            return self._template.render(
                messages=escaped, add_generation_prompt=True, tools=None, **self._tokens
            )
        except Exception as error:  # a template may do anything that an expression can
            raise engine.InvalidJob(
                f"the model's chat template failed: {error}", "messages"
            ) from None


def _environment() -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    environment.filters["tojson"] = _tojson
    environment.filters["urlencode"] = _urlencode
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


class _Generation(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks words for training: here without effect."""

    tags = {"generation"}  # noqa: RUF012  # the base class has it so

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As Hugging Face has it: jinja2's own escapes for HTML."""
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return _IN_JSON.sub(rf"\1{engine.ESCAPE}", text) if ensure_ascii else text


def _urlencode(value: Any) -> str:
    return jinja2.filters.do_urlencode(value).replace(_IN_URL, engine.ESCAPE)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
