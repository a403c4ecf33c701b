"""Contracts of routes, which are declared next to each view, and the OpenAPI document that is made
from them. Pure.
"""

import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import flask
import werkzeug.routing
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from switchyard import __version__
from switchyard.app.errors import ErrorBody
from switchyard.app.openapi.meanings import IGNORED, MEANINGS, REQUEST_ID, RETRY_AFTER

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
PATH_ARGUMENT = re.compile(r"<(?:[^:<>]+:)?([^<>]+)>")

REPEATABLE = "switchyard_repeatable"  # name of an attribute of views that have two more statuses
BODY = (400, 408, 413, 415, 429, 499)  # statuses of each route with a body
QUERY = (400, 414)  # statuses of each route with a query string
KEYS = (401, 429)  # statuses of each route that may need an API key
GENERATION = (404, 408, 429, 499, 503)  # statuses of each route that submits jobs

# The lowest role that may use a route if the server has API keys. `public`: no key is needed;
# `any`: any key.
Who = Literal["public", "any", "metrics", "user", "admin", "operator"]
# Names of attributes of views, for servers with API keys
WHO = "switchyard_who"
COUNTS = "switchyard_counts"  # whether requests to the view count toward the key's limits
GENERATES = "switchyard_generates"  # whether the view submits jobs


@dataclass(frozen=True, slots=True)
class Contract:
    answers: Mapping[int, Any]
    body: Any = None
    query: type[BaseModel] | None = None
    is_form: bool = False
    streams: Mapping[str, Any] = field(default_factory=dict)
    errors: Collection[int] = ()
    error: Any = ErrorBody
    example: Mapping[str, Any] | None = None
    who: Who = "user"

    @property
    def statuses(self) -> list[int]:
        """The statuses of all errors that the route may return."""
        body = BODY if self.body is not None else ()
        query = QUERY if self.query is not None else ()
        keys = () if self.who == "public" else KEYS
        return sorted({*self.errors, *body, *query, *keys, 403, 500} - self.answers.keys())

    def types(self) -> Iterator[tuple[Any, Any]]:
        """All types in the contract, each with pydantic's mode: "validation", "serialization"."""
        yield from ((kind, "validation") for kind in (self.body, self.query) if kind is not None)
        answered = (*self.answers.values(), *self.streams.values(), self.error)
        yield from ((kind, "serialization") for kind in answered if kind is not None)


View = TypeVar("View", bound=Callable[..., Any])
CONTRACT = "switchyard_contract"  # name of an attribute of views that have a contract


def declares(
    answers: Mapping[int, Any],
    *,
    body: Any = None,
    query: type[BaseModel] | None = None,
    is_form: bool = False,
    streams: Mapping[str, Any] | None = None,
    errors: Collection[int] = (),
    error: Any = ErrorBody,
    example: Mapping[str, Any] | None = None,
    who: Who = "user",
    counts: bool = True,
) -> Callable[[View], View]:
    """Declares the contract of a view. This decorator goes below the blueprint's decorator.

    The view's docstring becomes the summary and description in the document.

    `answers`: types of JSON bodies by status, without errors; None for no body. `body`: a model, or
    a union of models; with `is_form`, the body may also be sent as a form. `streams`: types of a
    stream's items by media type, for status 200; `str` for bare text. `errors`: statuses with a
    body of type `error`, besides 401, 403, 429, 500 and those for a body that can't be read.
    `example`: a body or query string with which to try the route. `who`: the lowest role that may
    use the route. `counts`: whether a request with a body or query string counts toward the limits
    of its API key.
    """
    contract = Contract(answers, body, query, is_form, streams or {}, errors, error, example, who)

    def declare(view: View) -> View:
        own = contract
        if getattr(view, REPEATABLE, False):
            own = replace(contract, answers={**answers, 204: None}, errors=(*errors, 422))
        setattr(view, CONTRACT, own)
        takes_input = body is not None or query is not None
        setattr(view, COUNTS, counts and takes_input)
        setattr(view, GENERATES, takes_input and {*GENERATION} <= {*errors})
        return needs(who)(view)

    return declare


def needs(who: Who) -> Callable[[View], View]:
    """Sets the lowest role for a view without a contract. The default is admin."""

    def mark(view: View) -> View:
        setattr(view, WHO, who)
        return view

    return mark


def declared(app: flask.Flask) -> Iterator[tuple[werkzeug.routing.Rule, Contract]]:
    """The routes of `app` with a contract. A host application's own routes have no contract. If a
    view has several paths, only the first is included.
    """
    seen: set[str] = set()
    for rule in app.url_map.iter_rules():
        view = app.view_functions[rule.endpoint]
        contract = getattr(view, CONTRACT, None)
        if contract is not None and rule.endpoint not in seen:
            seen.add(rule.endpoint)
            yield rule, contract


@functools.lru_cache(maxsize=1)
def document(app: flask.Flask) -> dict[str, Any]:
    """The OpenAPI 3.1 document of all routes that `app` has so far."""
    routes = list(declared(app))
    kinds = {kind for _, contract in routes for kind in contract.types()}
    schemas, definitions = TypeAdapter.json_schemas(
        [(kind, mode, TypeAdapter(kind)) for kind, mode in sorted(kinds, key=str)],
        ref_template="#/components/schemas/{model}",
        schema_generator=_Schema,
    )
    paths: dict[str, dict[str, Any]] = {}
    for rule, contract in routes:
        path = paths.setdefault(PATH_ARGUMENT.sub(r"{\1}", rule.rule), {})
        view = app.view_functions[rule.endpoint]
        for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}):
            operation = path[method.lower()] = _operation(rule, view, contract, schemas)
            _describe_input(operation, contract, schemas, definitions["$defs"])
    # In the order in which the blueprints were registered.
    tags = list(dict.fromkeys(_tag(rule) for rule, _ in routes))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Switchyard",
            "version": __version__,
            "description": "Parameters that are `null` count as unset.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "tags": [{"name": tag} for tag in tags],
        "paths": dict(sorted(paths.items(), key=lambda item: _place(item, tags))),
        "security": [{}, {"key": []}],  # needed if the server requires keys
        "components": {
            "schemas": definitions["$defs"],
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _tag(rule: werkzeug.routing.Rule) -> str:
    """The tag of a route: TAG for the blueprints `switchyard_TAG` and `switchyard_TAG_…`."""
    blueprint = str(rule.endpoint).split(".")[-2]
    return blueprint.removeprefix("switchyard_").partition("_")[0]


def _place(item: tuple[str, dict[str, Any]], tags: Sequence[str]) -> tuple[int, str]:
    """The sort key of a path: by tag, then by name."""
    path, operations = item
    [tag] = next(iter(operations.values()))["tags"]
    return tags.index(str(tag)), path


class _Schema(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: Any) -> bool:
        return False  # a generated title would only repeat the name


Schemas = Mapping[tuple[Any, Any], dict[str, Any]]


def _operation(
    rule: werkzeug.routing.Rule, view: Callable[..., Any], contract: Contract, schemas: Schemas
) -> dict[str, Any]:
    summary, _, description = (inspect.getdoc(view) or "").partition("\n")
    operation: dict[str, Any] = {
        "operationId": view.__name__,
        "tags": [_tag(rule)],
        "summary": summary.rstrip("."),
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in sorted(rule.arguments)
        ],
        "responses": dict(_responses(contract, schemas)),
    }
    if contract.who == "public":
        operation["security"] = []
    if description.strip():
        operation["description"] = description.strip()
    return operation


def _describe_input(
    operation: dict[str, Any], contract: Contract, schemas: Schemas, definitions: dict[str, Any]
) -> None:
    """Adds the body and the query string to an operation. In forms and query strings, objects are
    written as JSON.
    """
    example = contract.example or {}
    if contract.body is not None:
        schema = schemas[contract.body, "validation"]
        content: dict[str, Any] = {JSON: {"schema": schema}}
        if contract.is_form:
            fields = definitions[schema["$ref"].rpartition("/")[2]]["properties"]
            objects = [name for name, value in fields.items() if _is_object(value)]
            encoding = {name: {"contentType": JSON} for name in objects}
            content[FORM] = {"schema": schema, "encoding": encoding}
        for media_type in content.values():
            media_type["example"] = example
        operation["requestBody"] = {"required": True, "content": content}
    if contract.query is not None:
        schema = definitions[schemas[contract.query, "validation"]["$ref"].rpartition("/")[2]]
        for name, value in schema["properties"].items():
            is_required = name in schema.get("required", ())
            parameter: dict[str, Any] = {"name": name, "in": "query", "required": is_required}
            if _is_object(value):
                # With null, the page leaves the value out. Without an example, it makes one up from
                # the schema.
                parameter["content"] = {JSON: {"schema": value, "example": None}}
            else:
                parameter["schema"] = value if value.keys() - {"description"} else _TEXT | value
            if name in example:
                parameter["example"] = example[name]
            operation["parameters"].append(parameter)


_TEXT = {"type": "string"}  # the type of a query parameter whose schema names none


def _is_object(schema: dict[str, Any]) -> bool:
    kinds = [schema, *schema.get("anyOf", ())]
    return any("$ref" in kind or kind.get("type") == "object" for kind in kinds)


def _responses(contract: Contract, schemas: Schemas) -> Iterator[tuple[str, dict[str, Any]]]:
    for status, kind in contract.answers.items():
        content: dict[str, Any] = {}
        if kind is not None:
            content[JSON] = {"schema": schemas[kind, "serialization"]}
        if status == 200:
            error = schemas[contract.error, "serialization"]
            for name, item in contract.streams.items():
                content[name] = _stream(name, schemas[item, "serialization"], error)
        response: dict[str, Any] = {"description": MEANINGS.get(status, "Success.")}
        if content:
            response["content"] = content
        yield str(status), {**response, **_headers(status)}
    for status in contract.statuses:
        response = {"description": MEANINGS[status]}
        if status != 414:  # the HTTP server itself answers with 414
            response["content"] = {JSON: {"schema": schemas[contract.error, "serialization"]}}
        yield str(status), {**response, **_headers(status)}


def _stream(media_type: str, item: dict[str, Any], error: dict[str, Any]) -> dict[str, Any]:
    """The schema of a stream's items.

    OpenAPI has had a field for items since 3.2. For 3.1, the convention is a schema that describes
    each event.
    """
    if item == {"type": "string"}:
        return {"schema": item}
    item = {"anyOf": [item, error]}
    if media_type != "text/event-stream":
        return {"schema": {"type": "string"}, "x-item-schema": item}
    body = {"type": "string", "contentMediaType": JSON, "contentSchema": item}
    data = {"anyOf": [{"const": "[DONE]"}, body]}
    return {"schema": {"type": "object", "properties": {"data": data}, "required": ["data"]}}


def _headers(status: int) -> dict[str, Any]:
    return {
        "headers": {**REQUEST_ID, **IGNORED, **(RETRY_AFTER if status in (429, 503, 529) else {})}
    }
