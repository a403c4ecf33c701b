"""A JSON schema and all schemas inside it, which can be looked up by location or by reference. Does
no I/O.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urljoin

from switchyard.engine.errors import InvalidJob

# Keywords whose values contain schemas, by the place of these schemas.
ONE = {"items", "additionalItems", "additionalProperties"}
LISTED = {"anyOf", "oneOf", "allOf", "prefixItems", "items"}
NAMED = {"properties", "patternProperties", "$defs", "definitions"}

# Keywords that admit any value.
ANNOTATIONS = {
    *("title", "description", "default", "example", "examples", "deprecated", "readOnly"),
    *("writeOnly", "contentEncoding", "contentMediaType", "discriminator", "markdownDescription"),
}
NAMES = {"$defs", "definitions", "$schema", "$id", "id", "$anchor", "$comment"}

_SILENT = ANNOTATIONS | NAMES

MAX_SHOWN = 200  # characters of a schema's path

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Schema:
    """A schema at one location in a document. It equals only itself."""

    content: Json
    where: str  # its path from the root, at most MAX_SHOWN characters
    base: str = ""  # the URI that references in it are relative to


NOTHING = Schema({"enum": []}, "")  # the schema `false`


def refusal(where: str, what: str) -> InvalidJob:
    return InvalidJob(f"the schema at #{where} is not supported: {what}", "constraint")


def says_nothing(content: Json, beside: Collection[str] = ()) -> bool:
    """Whether the schema admits every value when the keywords `beside` are ignored."""
    return all(k in _SILENT or k in beside or k.startswith("x-") for k in content)


class Document:
    """All schemas in a document. Not thread-safe."""

    def __init__(self, root: Any) -> None:
        """Raises InvalidJob for a reference that leads to no schema in the document."""
        draft = root.get("$schema") if isinstance(root, dict) else None
        self._identifier = "id" if isinstance(draft, str) and "draft-04" in draft else "$id"
        self._by_id: dict[int, Schema] = {}  # by the identity of the content
        self._by_uri: dict[str, Any] = {"": root}
        self._derived: dict[tuple[int, frozenset[str]], Schema] = {}
        self._values: dict[int, tuple[Any, Schema]] = {}
        self._add(root, "", "")
        self._targets = {
            schema: self._find(schema) for schema in self.schemas() if "$ref" in schema.content
        }

    def schemas(self) -> list[Schema]:
        """All schemas, parents first."""
        return list(self._by_id.values())

    def at(self, content: Any) -> Schema | None:
        """Returns the schema with this content or, if the content is only a reference, the schema
        that it leads to. Returns None for a schema that admits everything.
        """
        passed: set[int] = set()
        while isinstance(content, dict):
            schema = self._by_id[id(content)]
            if not ("$ref" in content and says_nothing(content, {"$ref"})):
                return None if says_nothing(content) else schema
            if id(content) in passed:
                return NOTHING
            passed.add(id(content))
            content = self._targets[schema]
        return NOTHING if content is False else None

    def target(self, schema: Schema) -> Schema | None:
        """The schema that `$ref` leads to, or None if that schema admits everything."""
        content = self._targets[schema]
        return NOTHING if content is False else self._by_id.get(id(content))

    def without(self, schema: Schema, keywords: frozenset[str]) -> Schema:
        """Returns the schema without these keywords. Repeated calls return the same object."""
        if keywords.isdisjoint(schema.content):
            return schema
        key = id(schema.content), keywords
        if key not in self._derived:
            content = {k: v for k, v in schema.content.items() if k not in keywords}
            derived = Schema(content, schema.where, schema.base)
            self._derived[key] = self._by_id[id(content)] = derived
            if "$ref" in content:
                self._targets[derived] = self._targets[schema]
        return self._derived[key]

    def value(self, value: Any, where: str) -> Schema:
        """The schema that admits only `value`, an array or object."""
        if id(value) in self._values:
            return self._values[id(value)][1]
        content: dict[str, Any]
        if isinstance(value, dict):
            constants = {name: {"const": item} for name, item in value.items()}
            content = {
                "type": "object",
                "properties": constants,
                "required": list(value),
                "additionalProperties": False,
            }
            below = list(constants.values())
        else:
            below = [{"const": item} for item in value]
            content = {"type": "array", "prefixItems": below, "minItems": len(value)}
            content["maxItems"] = len(value)
        for item in [content, *below]:
            self._by_id[id(item)] = Schema(item, where)
        self._values[id(value)] = value, self._by_id[id(content)]
        return self._values[id(value)][1]

    def _add(self, root: Any, where: str, base: str) -> None:
        found: list[tuple[Any, str, str]] = [(root, where, base)]
        while found:
            content, where, base = found.pop()
            if not isinstance(content, dict) or id(content) in self._by_id:
                continue
            if isinstance(uri := content.get(self._identifier), str):
                uri = urljoin(base, uri).removesuffix("#")
                self._by_uri.setdefault(uri, content)
                base = uri.partition("#")[0]
            if isinstance(anchor := content.get("$anchor"), str):
                self._by_uri.setdefault(f"{base}#{anchor}", content)
            self._by_id[id(content)] = Schema(content, where, base)
            below = [(item, f"{where}/{path}"[:MAX_SHOWN], base) for path, item in _below(content)]
            found += reversed(below)

    def _find(self, schema: Schema) -> Any:
        reference = schema.content["$ref"]
        if not isinstance(reference, str):
            raise refusal(schema.where, "$ref must be a string")
        uri, _, fragment = reference.partition("#")
        uri = urljoin(schema.base, uri) if uri else schema.base
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            content = self._by_uri.get(f"{uri}#{fragment}")
        else:
            content = self._by_uri.get(uri)
            for step in fragment.split("/")[1:]:
                content = _step(content, step.replace("~1", "/").replace("~0", "~"))
        if not isinstance(content, bool) and id(content) not in self._by_id:
            said = f"the reference {reference[:MAX_SHOWN]!r} leads to no schema in this document"
            raise refusal(schema.where, said)
        return content


def _below(content: Json) -> Iterator[tuple[str, Any]]:
    """Yields the schemas directly inside a schema, each with its path relative to that schema."""
    for keyword, value in content.items():
        path = keyword[:MAX_SHOWN]
        if keyword in NAMED and isinstance(value, dict):
            yield from ((f"{path}/{name[:MAX_SHOWN]}", item) for name, item in value.items())
        elif keyword in LISTED and isinstance(value, list):
            yield from ((f"{path}/{i}", item) for i, item in enumerate(value))
        elif keyword in ONE:
            yield path, value


def _step(content: Any, step: str) -> Any:
    if isinstance(content, dict):
        return content.get(step)
    if isinstance(content, list) and step.isdecimal() and int(step) < len(content):
        return content[int(step)]
    return None
