"""Parameters for structured output, under the names of OpenAI, vLLM and llama.cpp."""

import functools
import json
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, Field, field_validator

from switchyard import engine
from switchyard.app.exceptions import BadRequest
from switchyard.app.parts.weight import SCHEMA, weigh
from switchyard.app.request.names import Called
from switchyard.app.request.validation import Finite, Parameters, without_nulls

Schema = dict[str, Any]
# Or a schema's JSON text, which vLLM accepts.
SchemaOrText = Schema | Annotated[str, Field(min_length=1)]
Text = Annotated[str, Field(min_length=1)]
Choices = Annotated[list[Text], Field(min_length=1, max_length=10_000, fail_fast=True)]


class NamedSchema(BaseModel):
    model_config = Finite

    name: str | None = Field(None, max_length=64)
    description: str | None = None
    strict: bool | None = None  # no effect, because every schema is strict
    schema_: Schema | None = Field(None, alias="schema")


Form = Literal["text", "json_object", "json_schema"]
FORMS = get_args(Form)


class ResponseFormat(BaseModel):
    """OpenAI's `response_format`; the `schema` member is llama.cpp's."""

    model_config = Finite

    type: Form
    json_schema: NamedSchema | None = None
    schema_: Schema | None = Field(None, alias="schema")


class StructuredOutputs(BaseModel):
    """vLLM's `structured_outputs`. Exactly one member is set."""

    model_config = Finite

    json_: SchemaOrText | None = Field(None, alias="json")
    regex: Text | None = None
    choice: Choices | None = None
    grammar: Text | None = None
    json_object: Literal[True] | None = None


class Constrained(Parameters):
    response_format: Annotated[ResponseFormat | None, Called(others=("format",))] = Field(
        None,
        description="The format of the output: `text`, `json_object`, or `json_schema` with a"
        " schema, which is always strict. Under the name `format`, also"
        ' `"json"` or a schema, as in Ollama.',
    )
    json_schema: Schema | None = Field(
        None,
        description="The output is JSON that matches this schema. The model chooses the order of"
        " properties.",
    )
    regex: Annotated[Text | None, Called(others=("regex_pattern",))] = Field(
        None,
        description="The whole output matches this regular expression, in the syntax of Rust's"
        " `regex`: `\\d`, `\\w` and `\\s` are ASCII, anchors are allowed only at the ends, and"
        " there is no look-around.",
    )
    choice: Choices | None = Field(None, description="The output is one of these texts.")
    grammar: Annotated[Text | None, Called(textgen="grammar_string", others=("ebnf",))] = Field(
        None,
        description="The output follows this grammar, in GBNF (llama.cpp) or Lark (llguidance). A"
        " grammar that is too slow ends the generation with the error `constraint_too_slow`.",
    )
    guided_json: SchemaOrText | None = Field(
        None, description="The same as `json_schema`; may also be a string with the schema's JSON."
    )
    guided_regex: Text | None = Field(None, description="The same as `regex`.")
    guided_choice: Choices | None = Field(None, description="The same as `choice`.")
    guided_grammar: Text | None = Field(None, description="The same as `grammar`.")
    structured_outputs: StructuredOutputs | None = Field(
        None,
        description="One of `json`, `regex`, `choice`, `grammar`, `json_object`, as in vLLM.",
    )

    @field_validator("response_format", "structured_outputs", mode="before", check_fields=False)
    @classmethod
    def _without_nulls_in_forms(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        given = without_nulls(value)
        if isinstance(named := given.get("json_schema"), dict):
            given["json_schema"] = without_nulls(named)
        return given

    @classmethod
    def translate(cls, body: dict[str, Any]) -> dict[str, Any]:
        """Accepts `format` in Ollama's syntax as the response format, because Open WebUI sends
        `format` to all servers.
        """
        body = super().translate(body)
        if "format" not in body or "format" not in cls.other_names():
            return body
        match body["format"]:
            case "json":
                return {**body, "format": {"type": "json_object"}}
            case dict(schema) if schema.get("type") not in FORMS:
                return {**body, "format": {"type": "json_schema", "schema": schema}}
        return body

    def check(self) -> None:
        super().check()
        _ = self.constraint  # evaluated for its errors

    @functools.cached_property
    def constraint(self) -> engine.Constraint | None:
        """The constraint of the request. Two parameters may set the same constraint.

        Raises BadRequest if two parameters set different constraints, or if a constraint is
        invalid.
        """
        wanted = [*_of_format(self.response_format), *_of_vllm(self.structured_outputs)]
        for name, kind in _KINDS.items():
            if (value := getattr(self, name)) is not None:
                wanted.append((name, kind, value))
        if not wanted:
            return None
        [constraint, *others] = [_made(*one) for one in wanted]
        for other, (name, _, _) in zip(others, wanted[1:], strict=True):
            if other != constraint:
                raise BadRequest(f"{wanted[0][0]} and {name} can't be combined", name)
        return constraint

    @property
    def name_of_constraint(self) -> str:
        """The parameter that sets the constraint, for error messages."""
        names = ("response_format", "structured_outputs", *_KINDS)
        return next((name for name in names if name in self.model_fields_set), "constraint")


Wanted = tuple[str, str, Any]  # parameter, kind of constraint, value


def _made(name: str, kind: str, value: Any) -> engine.Constraint:
    """The constraint that one parameter sets. Raises BadRequest with `name` as its parameter."""
    try:
        return _MAKE[kind](value)
    except engine.InvalidJob as error:
        raise BadRequest(f"{name}: {error}", name) from None


def _of_format(form: ResponseFormat | None) -> Iterator[Wanted]:
    if form is None:
        return
    schemas = [
        schema
        for schema in (form.schema_, form.json_schema and form.json_schema.schema_)
        if schema is not None
    ]
    if form.type == "json_object" and form.json_schema is None and not schemas:
        yield "response_format", "object", None
    elif form.type != "text" and len(schemas) == 1:
        yield "response_format", "json", schemas[0]
    elif form.type != "text":
        raise BadRequest("response_format: must have exactly one schema", "response_format")
    elif schemas or form.json_schema is not None:
        raise BadRequest("response_format: type text allows no schema", "response_format")


def _of_vllm(outputs: StructuredOutputs | None) -> Iterator[Wanted]:
    if outputs is None:
        return
    if not outputs.model_fields_set:
        raise BadRequest("structured_outputs: exactly one member must be set", "structured_outputs")
    for field in sorted(outputs.model_fields_set):
        yield f"structured_outputs.{field.rstrip('_')}", _FIELDS[field], getattr(outputs, field)


def _json(schema: Schema | str) -> engine.Constraint:
    if not isinstance(schema, str):
        weigh(SCHEMA * len(json.dumps(schema)))
        return engine.constraints.json_schema(schema)
    engine.constraints.check_length(schema, engine.constraints.MAX_SCHEMA_LENGTH)
    weigh(SCHEMA * len(schema))
    try:
        return engine.constraints.json_schema(json.loads(schema))
    except (ValueError, RecursionError) as reason:
        raise engine.InvalidJob(f"the schema is not JSON: {reason}") from None


_KINDS = {
    "json_schema": "json",
    "guided_json": "json",
    "regex": "regex",
    "guided_regex": "regex",
    "choice": "choice",
    "guided_choice": "choice",
    "grammar": "grammar",
    "guided_grammar": "grammar",
}
_FIELDS = {
    "json_": "json",
    "json_object": "object",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
}
_MAKE: dict[str, Callable[[Any], engine.Constraint]] = {
    "object": lambda _: engine.constraints.json_object(),
    "json": _json,
    "regex": engine.constraints.regex,
    "choice": engine.constraints.choice,
    "grammar": engine.constraints.grammar,
}
