"""What schemathesis is told of this server: SCHEMATHESIS_HOOKS=tests.live.contract_hooks."""

import schemathesis

VOCABULARY = 2048  # token ids that all models of the tests have


@schemathesis.hook
def before_load_schema(context, raw_schema):
    """A field of an answer that the document doesn't have shall fail; clients needn't mind it."""
    schemas = raw_schema["components"]["schemas"]
    pending = [
        content.get("schema", {})
        for path in raw_schema["paths"].values()
        for operation in path.values()
        for response in operation["responses"].values()
        for content in response.get("content", {}).values()
    ]
    seen = set()
    while pending:
        match pending.pop():
            case {"$ref": str(reference)} if reference not in seen:
                seen.add(reference)
                schema = schemas[reference.rpartition("/")[2]]
                if "properties" in schema:
                    schema.setdefault("additionalProperties", False)
                pending.append(schema)
            case dict(schema):
                pending += schema.values()
            case list(items):
                pending += items


@schemathesis.hook
def before_call(context, case, kwargs):
    """Parameters of which each is right as the document has it, but which together, or for this
    server and model, are not: make them fit, so that valid data is taken.
    """
    if isinstance(case.body, dict) and case.meta.generation.mode.is_positive:
        case.body = fit(plain(case.body))


def plain(value):
    """Short texts and lists; integers without the fraction of 0 that JSON Schema lets them have."""
    match value:
        case dict():
            return {name: plain(item) for name, item in value.items()}
        case list():
            return [plain(item) for item in value[:8]]
        case str():
            return value[:100].replace("\ufdd0", "")
        case float() if value.is_integer():
            return int(value)
    return value


def fit(body):
    body = {name: value for name, value in body.items() if value is not None}
    if "max_completion_tokens" in body:
        body.pop("max_tokens", None)
    if not body.get("stream"):
        body.pop("stream_options", None)
    body.pop("model", None)
    most = {
        "max_tokens": 4,
        "max_completion_tokens": 4,
        "min_tokens": 1,
        "n": 3,
        "priority": 10,
    }
    if "max_completion_tokens" not in body:
        body.setdefault("max_tokens", 4)
    for name in most.keys() & body.keys():
        body[name] = min(body[name], most[name])
    if "timeout" in body:
        body["timeout"] = 20  # what ends in time is for other tests
    for name in {"stop_token_ids", "prompt"} & body.keys():
        body[name] = _known_tokens(body[name])
    return body


def _known_tokens(value):
    if isinstance(value, list):
        return [_known_tokens(item) for item in value]
    return value % VOCABULARY if isinstance(value, int) else value
