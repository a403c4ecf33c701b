"""Texts of the OpenAPI document for statuses and headers, common to all routes."""

MEANINGS = {
    204: "No content.",
    400: "A parameter or the body can't be understood or honored; `param` names it.",
    401: "The API key is missing or not valid, and the server requires one.",
    403: "Forbidden for this `Host`, from another machine, for a web page from another origin,"
    " or for this API key's role.",
    404: "The resource or the model does not exist.",
    408: "The body or the generation took longer than the settings allow.",
    409: "The model is already being loaded or swapped, or doesn't fit in memory; the message shows"
    " the numbers.",
    413: "The body is longer than this server accepts.",
    414: "The query string is longer than the HTTP server accepts. The response is HTML.",
    415: "The body's content type is not supported.",
    422: "The Idempotency-Key was used with another request.",
    429: "Too many requests are waiting, or the API key has reached a limit.",
    499: "The client closed its side of the connection before the response.",
    500: "The server or the generation failed.",
    501: "The server doesn't support this operation.",
    503: "The model is loading, shutting down or gone.",
    529: "The model is loading, hanging or shutting down. Anthropic's API uses this status in"
    " place of 503.",
}
REQUEST_ID = {
    "X-Request-Id": {
        "description": "The request's own id if it is valid, otherwise one that the server"
        " generated.",
        "schema": {"type": "string"},
    }
}
IGNORED = {
    "X-Switchyard-Ignored": {
        "description": "Parameters that were accepted but had no effect, separated by commas.",
        "schema": {"type": "string"},
    }
}
RETRY_AFTER = {
    "Retry-After": {
        "description": "Seconds to wait, estimated from the current rate.",
        "schema": {"type": "integer", "minimum": 1},
    }
}
