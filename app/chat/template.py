"""A model's own chat template: rendering, escaping, and probing what it supports."""

import json
import re
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.filters
import jinja2.meta
import jinja2.nodes
import jinja2.parser

from switchyard import engine
from switchyard.app.chat.adapt.generic import Escaped
from switchyard.app.chat.adapt.history import arranged
from switchyard.app.chat.adapt.probe import probe
from switchyard.app.chat.adapt.traits import Traits
from switchyard.app.chat.sandbox import Sandbox

# The escape character as filters encode it. A user's text can't imitate it, because the filters
# also encode `%` and double backslashes.
_IN_URL = urllib.parse.quote(engine.ESCAPE)
_IN_JSON = re.compile(rf"(?<!\\)((?:\\\\)*)\\u{ord(engine.ESCAPE):04x}")


# Marks the end of a last message that the answer continues. No escaped text contains it.
_CUT = f"{engine.ESCAPE}cut{engine.ESCAPE}"

# Variables that a request must not set.
_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
TOOL_USE = "tool_use"  # the name of a template for conversations with tools
_OWN = {"messages", "tools", "documents", "add_generation_prompt", *_TOKENS}


@dataclass(frozen=True, slots=True)
class Conversation:
    """The input of a chat template, as passed to Hugging Face's `apply_chat_template`."""

    messages: Sequence[dict[str, Any]]
    tools: Sequence[dict[str, Any]] = ()
    documents: Sequence[dict[str, Any]] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True
    continues: bool = False  # the answer continues the last message, so its end is left out


class ChatTemplate:
    """Renders prompts. Templates may use the functions that `apply_chat_template` offers."""

    def __init__(self, model_dir: engine.ModelDir, name: str = "default") -> None:
        """Uses the template called `name`. A broken template is not an error here, because
        completions don't need a template. `render` reports the error.
        """
        found = model_dir.chat_templates.get(name)
        self.source = "" if found is None else found.text
        self.variables: frozenset[str] = frozenset()  # names that the template uses
        self.traits = Traits()
        self.fault: str | None = None  # the reason why the template can't render anything
        self._tokens = {name: model_dir.special_token(name) or "" for name in _TOKENS}
        self._environment = _environment()
        self._template: jinja2.Template | None = None
        if found is not None:
            place = f"the model's chat template, {found.file},"
            environment = self._environment
            try:
                self._template = environment.from_string(self.source)
            except Exception as error:  # jinja2 also raises errors that aren't its own
                self.fault = f"{place} is broken: {error}"
            else:
                parsed = environment.parse(self.source)
                read = jinja2.meta.find_undeclared_variables(parsed)
                self.variables = frozenset(read - environment.globals.keys())
                self.traits, reason = probe(self._probe, self.source)
                if reason is not None:
                    self.fault = f"{place} fails on every conversation: {reason}"
        self._for_tools = (
            ChatTemplate(model_dir, TOOL_USE)
            if name == "default" and TOOL_USE in model_dir.chat_templates
            else self
        )
        self.fault = self.fault or (self._for_tools.fault if self._for_tools is not self else None)

    def chosen(self, has_tools: bool) -> "ChatTemplate":
        """The template for a request. Some models have a separate template for tools."""
        return self._for_tools if has_tools else self

    def check_variables(self, names: Iterable[str], param: str) -> None:
        """Raises engine.InvalidJob for variables that are reserved, or that the template ignores.
        `param`: the name of the parameter that holds the variables.
        """
        for name in names:
            if name in _OWN:
                raise engine.InvalidJob(f"{name} is reserved and can't be set", param)
            if name not in self.variables:
                raise engine.InvalidJob(f"the model's chat template doesn't use {name}", param)

    def render(self, conversation: Conversation, escape: Callable[[str], str]) -> str:
        """The text of the prompt. `escape` is applied to all of the user's text.

        Raises engine.InvalidJob if there is no usable template, or if the template refuses the
        messages or fails.
        """
        if self._template is None:
            missing = "the model has no chat template; use /v1/completions"
            raise engine.InvalidJob(self.fault or missing, "messages")
        escaped = arranged(
            [
                {k: v if k == "role" else _escaped(v, escape) for k, v in message.items()}
                for message in conversation.messages
            ],
            self.traits,
        )
        if conversation.continues:
            escaped[-1]["content"] += _CUT
        try:
            text = self._environment.render(
                self._template,
                messages=escaped,
                # None instead of an empty list, because some templates test `tools is not none`.
                tools=_escaped(list(conversation.tools), escape) or None,
                documents=_escaped(list(conversation.documents), escape) or None,
                add_generation_prompt=conversation.add_generation_prompt,
                **_escaped(dict(conversation.variables), escape),
                **self._tokens,
            )
        except Exception as error:  # a template may do anything that an expression can
            raise engine.InvalidJob(
                f"the model's chat template failed: {error}", "messages"
            ) from None
        if not conversation.continues:
            return text
        text, found, _ = text.partition(_CUT)
        if not found:
            raise engine.InvalidJob(
                "the model's chat template leaves out the last message", "continue_final_message"
            )
        return text

    def _probe(self, messages: Sequence[dict[str, Any]]) -> str:
        """Renders a conversation with a tool. Raises any exception that the template causes."""
        assert self._template is not None
        return self._environment.render(
            self._template,
            messages=messages,
            tools=[_PROBE_TOOL],
            documents=None,
            add_generation_prompt=False,
            **self._tokens,
        )


_PROBE_TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "", "parameters": {"type": "object"}},
}


def _escaped(value: Any, escape: Callable[[str], str]) -> Any:
    """`value` with `escape` applied to every text in it, including the keys of objects."""
    match value:
        case Escaped():
            return str(value)
        case str():
            return escape(value)
        case list():
            return [_escaped(item, escape) for item in value]
        case dict():
            return {escape(key): _escaped(item, escape) for key, item in value.items()}
    return value


def _environment() -> Sandbox:
    environment = Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    environment.filters["tojson"] = _tojson
    environment.filters["urlencode"] = _urlencode
    environment.bound_filters()
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


class _Generation(jinja2.ext.Extension):
    """The `{% generation %}…{% endgeneration %}` block, which marks text for training. Has no
    effect here.
    """

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
    """The `tojson` filter, as in Hugging Face's templates. jinja2's own filter escapes for HTML."""
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return _IN_JSON.sub(rf"\1{engine.ESCAPE}", text) if ensure_ascii else text


def _urlencode(value: Any) -> str:
    return jinja2.filters.do_urlencode(value).replace(_IN_URL, engine.ESCAPE)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
