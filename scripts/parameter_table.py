"""Write the tables of parameters in docs/api.md, from the contracts of the routes.

Usage: .venv/bin/python scripts/parameter_table.py
"""

import json
import pathlib
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from switchyard import app, engine  # noqa: E402
from switchyard.app.openapi.contract import document  # noqa: E402
from switchyard.app.request.validation import NEUTRAL, OTHER, SETTLED, TOLD  # noqa: E402

PAGE = ROOT / "docs" / "api.md"
BEGIN, END = "<!-- parameters -->\n", "<!-- end of parameters -->\n"
LOADING = (
    "/admin/",
    "/models/",
    "/v1/model/",
)  # which take settings: docs/configuration.md has them
COUNTING = "/input_tokens"  # ends paths that take what the path before it does
UNBOUNDED = 2**31 - 1  # from here on a limit is only what an integer holds


class Row(NamedTuple):
    name: str  # dotted, `[]` for each item of a list
    type: str
    default: str
    description: str


class Neutral(NamedTuple):
    """A parameter that is taken with values that ask for nothing."""

    name: str
    values: str


Rows = dict[Row | Neutral, list[str]]  # each with its endpoints


def rows(api: dict[str, Any]) -> Rows:
    """Of an OpenAPI document, each once, with the paths of all endpoints that have it."""
    definitions = api["components"]["schemas"]
    found: Rows = {}
    for path, methods in sorted(api["paths"].items(), key=_openai_first):
        if path.endswith(COUNTING) or path.startswith(LOADING):
            continue
        for operation in methods.values():
            for schema in _objects(operation, definitions):
                for row in _rows(schema, definitions, "", ()):
                    paths = found.setdefault(row, [])
                    if path not in paths:
                        paths.append(path)
    return found


def _openai_first(item: tuple[str, Any]) -> tuple[bool, str]:
    return not item[0].startswith("/v1/"), item[0]


def _objects(operation: dict[str, Any], definitions: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What it takes: its body, its query string."""
    contents = operation.get("requestBody", {}).get("content", {})
    schemas = [content["schema"] for content in contents.values()]
    for reference in dict.fromkeys(name for s in schemas for name, _ in _references(s)):
        yield definitions[reference]
    query = [p for p in operation["parameters"] if p["in"] == "query"]
    if query:
        yield {
            "properties": {
                p["name"]: p["schema"]
                if "schema" in p
                else p["content"]["application/json"]["schema"]
                for p in query
            },
            "required": [p["name"] for p in query if p["required"]],
        }


def _rows(
    schema: dict[str, Any], definitions: dict[str, Any], prefix: str, above: tuple[str, ...]
) -> Iterator[Row | Neutral]:
    """Of an object: its properties, and those described of objects inside."""
    for name, value in schema.get("properties", {}).items():
        if value.get("description") in (NEUTRAL, SETTLED, TOLD):
            values = [_code(item) for item in value.get("enum", ()) if item is not None]
            values = values if "enum" in value else ["any"]
            if not prefix:
                yield Neutral(name, ", ".join(dict.fromkeys(values)) or "`null`")
            continue
        if (prefix and "description" not in value) or value.get("description", "").startswith(
            OTHER
        ):
            continue
        default = "required" if name in schema.get("required", ()) else _default(value)
        yield Row(f"{prefix}{name}", _type(value), default, value.get("description", ""))
        for reference, is_item in _references(value):
            if reference not in above:
                inner = f"{prefix}{name}{'[]' if is_item else ''}."
                yield from _rows(definitions[reference], definitions, inner, (*above, reference))


def _references(schema: dict[str, Any], is_item: bool = False) -> Iterator[tuple[str, bool]]:
    if "$ref" in schema:
        yield schema["$ref"].rpartition("/")[2], is_item
    for kind in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from _references(kind, is_item)
    if isinstance(schema.get("items"), dict):
        yield from _references(schema["items"], True)


def _type(schema: dict[str, Any]) -> str:
    kinds = [k for k in schema.get("anyOf", schema.get("oneOf", ())) if k != {"type": "null"}]
    if kinds:
        return " or ".join(dict.fromkeys(map(_type, kinds)))
    if "enum" in schema or "const" in schema:
        return ", ".join(map(_code, schema.get("enum", [schema.get("const")])))
    match schema.get("type"):
        case "array":
            limit = f", at most {schema['maxItems']}" if "maxItems" in schema else ""
            return f"list ({_type(schema.get('items', {}))}){limit}"
        case "string":
            limit = f" of at most {schema['maxLength']} characters" if "maxLength" in schema else ""
            return f"string{limit}"
        case "integer" | "number":
            return f"{schema['type']}{_range(schema)}"
        case str(kind):
            return kind
    return "object" if "$ref" in schema else "any"


def _range(schema: dict[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if "exclusiveMinimum" in schema:
        text = f", above {schema['exclusiveMinimum']}"
    else:
        text = f" from {low}" if low is not None and low > -UNBOUNDED else ""
    return f"{text} to {high}" if high is not None and high < UNBOUNDED else text


def _default(schema: dict[str, Any]) -> str:
    default = schema.get("default")
    return "" if default is None or default == [] else _code(default)


def _code(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return f"`{json.dumps(value)}`"


def text(api: dict[str, Any]) -> str:
    found = rows(api)
    sets = Counter(map(tuple, found.values()))
    everywhere = max(sets, key=lambda paths: len(paths) * sets[paths])

    def where(paths: list[str]) -> str:
        lacking = [f"`{path}`" for path in everywhere if path not in paths]
        if len(lacking) <= 2 and set(paths) <= set(everywhere):
            return "all" + " but ".join(["", *lacking[:1]]) + " and ".join(["", *lacking[1:]])
        return ", ".join(f"`{path}`" for path in paths)

    taken = [
        f"| `{row.name}` | {row.type} | {row.default} | {where(paths)} | {row.description} |"
        for row, paths in found.items()
        if isinstance(row, Row)
    ]
    neutral = [
        f"| `{row.name}` | {row.values} | {where(paths)} |"
        for row, paths in found.items()
        if isinstance(row, Neutral)
    ]
    return "\n".join(
        [
            "",
            f"`all` endpoints are {', '.join(f'`{path}`' for path in everywhere)}.",
            "",
            "| parameter | type, range | default | endpoints | |",
            "|---|---|---|---|---|",
            *taken,
            "",
            "Taken with a value that asks for nothing, and refused with any other:",
            "",
            "| parameter | values | endpoints |",
            "|---|---|---|",
            *neutral,
            "",
            "",
        ]
    )


def write(page: str, table: str) -> str:
    """The page with the table in its place."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + table + END + rest.partition(END)[2]


if __name__ == "__main__":
    api = document(app.create_app(app.Settings(), engine.Models([])))
    PAGE.write_text(write(PAGE.read_text(), text(api)))
