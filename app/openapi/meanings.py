"""Texts of the OpenAPI document for statuses and headers, common to all routes."""

MEANINGS = {
    204: "No content.",
    400: "A parameter, or the body, can't be understood or honored; `param` names it.",
    401: "The API key is missing or not valid, and the server requires one.",
    403: "Forbidden for this `Host`, from another machine, for a web page of another origin, or"
    " with an API key of this role.",
    404: "The resource, or the model, does not exist.",
    408: "The body, or the generation, took longer than the settings allow.",
    409: "The model is being loaded or swapped already, or has no room in memory; the message has"
    " the sums.",
    413: "The body is longer than this server takes.",
    414: "The query string is longer than the HTTP server takes. The answer is HTML.",
    415: "The body's content type is not supported.",
    422: "The Idempotency-Key was used with another request.",
    429: "Too many requests wait, or the API key has reached a limit.",
    499: "The client closed its side of the connection before the answer.",
    500: "The server, or the generation, failed.",
    501: "This server doesn't support this.",
    503: "The model is loading, shutting down or gone.",
    529: "The model is loading, hanging or shutting down: Anthropic's word for that 503.",
}
REQUEST_ID = {
    "X-Request-Id": {
        "description": "The request's own id if it is valid, else one that the server made.",
        "schema": {"type": "string"},
    }
}
IGNORED = {
    "X-Switchyard-Ignored": {
        "description": "Parameters that were accepted without effect, joined by commas.",
        "schema": {"type": "string"},
    }
}
RETRY_AFTER = {
    "Retry-After": {
        "description": "Seconds to wait, estimated from the present rate.",
        "schema": {"type": "integer", "minimum": 1},
    }
}
