"""Write docs/parameters.md, with the tables of parameters by topic, from the contracts of the
routes.

Usage: .venv/bin/python scripts/parameter_table.py
"""

import json
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from switchyard import app, engine  # noqa: E402
from switchyard.app.chat.request import Chat  # noqa: E402
from switchyard.app.formats.anthropic.parse import MessageRequest  # noqa: E402
from switchyard.app.formats.openai.parse import Completion  # noqa: E402
from switchyard.app.formats.responses.parse import ResponseRequest  # noqa: E402
from switchyard.app.openapi.contract import document  # noqa: E402
from switchyard.app.request.validation import NEUTRAL, OTHER, SETTLED, TOLD  # noqa: E402

PAGE = ROOT / "docs" / "parameters.md"
HEAD = """# Parameters

`scripts/parameter_table.py` generates this page from the code that checks requests. Parameters not
listed here are refused, with an error that names them. A parameter set to `null` counts as unset.
[api.md](api.md) explains how parameters work together.

The "endpoints" column uses these words:
"""
NEUTRAL_HEAD = """
## Parameters without effect

The server accepts these parameters with the values below, which have no effect, and lists them in
the `X-Switchyard-Ignored` header. It refuses other values.
"""
NAMES_HEAD = """
## Other names

Every endpoint that generates text also accepts its parameters under the names that other servers
use. If a request sets a parameter under two names to different values, it gets a 400 that names
both.
"""
WORDS = {
    "all": (
        *("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"),
        *("/api/extra/generate/stream", "/api/v1/generate", "/apply-template", "/completion"),
        *("/generate", "/infill", "/tokenize", "/api/chat", "/api/generate"),
    ),
    "chats": ("/v1/chat/completions", "/apply-template", "/tokenize"),
    "messages": ("/v1/messages", "/v1/messages/count_tokens"),
    "KoboldAI": ("/api/v1/generate", "/api/extra/generate/stream"),
    "llama.cpp": ("/completion", "/infill"),
    "Ollama": ("/api/chat", "/api/generate"),
}
TOPICS = {  # names up to the first dot or bracket
    "Model and prompt": "model prompt suffix echo input_prefix input_suffix input_extra"
    " parse_special preset context raw options keep_alive",
    "Conversation": "messages system input previous_response_id store instructions documents"
    " chat_template_kwargs add_generation_prompt continue_final_message cache_control",
    "Length and stop": "max_tokens max_completion_tokens max_output_tokens max_length n_predict"
    " num_predict max_new_tokens min_tokens min_length max_context_length truncation_length stop"
    " stop_sequences stop_sequence stopping_strings stop_token_ids ignore_eos bypass_eos"
    " use_default_badwordsids include_stop_str_in_output stop_on_loop",
    "Answer and streaming": "n best_of stream stream_options return_progress timings"
    " timings_per_token return_tokens response_fields",
    "Logprobs": "logprobs include top_logprobs prompt_logprobs return_token_ids n_probs"
    " return_tokens_as_token_ids",
    "Temperature": "temperature temperature_last dynatemp_low dynatemp_high dynatemp_exponent"
    " dynatemp_range smoothing_factor smoothing_curve",
    "Filters and mirostat": "top_k top_p top_a min_p tfs tfs_z typical_p typical xtc_probability"
    " xtc_threshold mirostat_mode mirostat mirostat_tau mirostat_eta sampler_order",
    "Random draw": "skew seed sampler_seed",
    "Repetition": "repetition_penalty repetition_penalty_range repetition_decay rep_pen"
    " rep_pen_range repeat_penalty repeat_last_n frequency_penalty presence_penalty"
    " dry_multiplier dry_base dry_allowed_length dry_range dry_penalty_last_n"
    " dry_sequence_breakers",
    "Allowed and banned tokens": "logit_bias banned_token_ids custom_token_bans allowed_token_ids"
    " banned_strings token_healing",
    "Guidance": "cfg_scale guidance_scale negative_prompt",
    "Structured output": "response_format json_schema regex choice grammar grammar_string format"
    " guided_json guided_regex guided_choice guided_grammar structured_outputs text",
    "Tools": "tools tool_choice parallel_tool_calls",
    "Reasoning": "reasoning_effort enable_thinking think thinking reasoning_budget reasoning"
    " separate_reasoning include_reasoning output_config",
    "Scheduling and identity": "priority timeout user metadata safety_identifier"
    " prompt_cache_key genkey",
}
ROUTES = {  # topics of parameters that occur only in routes whose paths begin like this
    "Tokens": ("/tokenize", "/detokenize", "/v1/internal/", "/v1/token/", "/api/extra/tokencount"),
    "Usage": ("/v1/usage",),
}
LOADING = (
    "/admin/",
    "/models/",
    "/v1/model/",
)  # these take settings: see docs/configuration.md
NOTES = {  # before the table of a topic
    "Structured output": """\
The model chooses the order of an object's properties, so clients can't rely on the schema's order.
Each named property occurs at most once, and no required property is missing.
[Structured output](api/generation.md#structured-output) lists which keywords are enforced and which
are refused.
""",
}
COUNTING = "/input_tokens"  # a path with this ending takes the parameters of the path before it
KINDS = (Completion, Chat, MessageRequest, ResponseRequest)  # for their other names
UNBOUNDED = 2**31 - 1  # limits from here on are just those of an integer


class Row(NamedTuple):
    name: str  # dotted, `[]` for each item of a list
    type: str
    default: str
    description: str


class Neutral(NamedTuple):
    """A parameter that is accepted only with values that have no effect."""

    name: str
    values: str


Rows = dict[Row | Neutral, list[str]]  # row -> its endpoints


def rows(api: dict[str, Any]) -> Rows:
    """Returns the rows for an OpenAPI document, each once, with the paths of its endpoints."""
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
    """The schemas of an operation's body and query string."""
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
    """The rows for an object's properties, and for documented properties of nested objects."""
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
        case "array" if len(schema.get("prefixItems", ())) == schema.get("maxItems") == 2:
            return "pair"
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
    """The whole page."""
    found = rows(api)
    taken = {row: paths for row, paths in found.items() if isinstance(row, Row)}
    neutral = {row: paths for row, paths in found.items() if isinstance(row, Neutral)}
    topics: dict[str, list[str]] = {topic: [] for topic in (*TOPICS, *ROUTES)}
    for row, paths in taken.items():
        cells = f"`{row.name}`", row.type, row.default, where(paths), row.description
        topics[topic_of(row, paths)].append(f"| {' | '.join(cells)} |")
    lines = [HEAD, "| word | endpoints |", "|---|---|"]
    lines += [f"| {word} | {', '.join(map(_code_of, paths))} |" for word, paths in WORDS.items()]
    for topic, table in topics.items():
        head = "| parameter | type, range | default | endpoints | |\n|---|---|---|---|---|"
        notes = [NOTES[topic]] if topic in NOTES else []
        lines += [f"\n## {topic}\n", *notes, head, *table]
    lines += [NEUTRAL_HEAD, "| parameter | values | endpoints |", "|---|---|---|"]
    lines += [f"| `{row.name}` | {row.values} | {where(p)} |" for row, p in neutral.items()]
    lines += [NAMES_HEAD, "| parameter | other names |", "|---|---|"]
    lines += [f"| `{own}` | {', '.join(map(_code_of, other))} |" for own, other in other_names()]
    return "\n".join([*lines, ""])


def topic_of(row: Row, paths: list[str]) -> str:
    for topic, beginnings in ROUTES.items():
        if all(path.startswith(beginnings) for path in paths):
            return topic
    root = re.split(r"[.\[]", row.name)[0]
    topics = [topic for topic, names in TOPICS.items() if root in names.split()]
    if len(topics) != 1:
        raise SystemExit(
            f"the parameter {row.name} of {', '.join(paths)} needs a topic in {__file__}"
        )
    return topics[0]


def where(paths: list[str]) -> str:
    """The endpoints, as words from WORDS where they fit, then as single paths."""
    for word, members in WORDS.items():
        lacking = [path for path in members if path not in paths]
        if len(lacking) <= (4 if word == "all" else 0):
            rest = where([path for path in paths if path not in members])
            if not lacking:
                return f"{word}, {rest}" if rest else word
            *first, last = map(_code_of, lacking)
            exceptions = f"{', '.join(first)} and {last}" if first else last
            return f"{word} except {exceptions}{f'; {rest}' if rest else ''}"
    return ", ".join(map(_code_of, paths))


def other_names() -> list[tuple[str, list[str]]]:
    """Maps each parameter to its names on other servers."""
    names: dict[str, set[str]] = {}
    for kind in KINDS:
        for name, own in kind.other_names().items():
            names.setdefault(own, set()).add(name)
    return sorted((own, sorted(other)) for own, other in names.items())


def _code_of(path: str) -> str:
    return f"`{path}`"


if __name__ == "__main__":
    api = document(app.create_app(app.Settings(), engine.Models([])))
    PAGE.write_text(text(api))
