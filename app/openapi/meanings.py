"""What the OpenAPI document says of statuses and headers, whatever the route."""

MEANINGS = {
    204: "There is nothing more.",
    400: "A parameter, or the body, can't be understood or honoured; `param` names it.",
    401: "The API key is missing or not valid, where the server asks for keys.",
    403: "Not under this `Host`, from another machine, by a web page of another origin, or with an"
    " API key of this role.",
    404: "There is no such thing, or no such model.",
    408: "The body, or the generation, took longer than it may.",
    409: "It is being loaded or swapped already, or there is no memory for it: with the sums.",
    413: "The body is longer than this server takes.",
    414: "The query string is longer than the HTTP server takes, which says so in HTML.",
    415: "The body's content type is another one.",
    422: "The Idempotency-Key has come with another request.",
    429: "Too much waits already, or the API key is at one of its limits.",
    499: "The client has ended its side of the connection before the answer.",
    500: "The server, or the generation, failed.",
    501: "This server doesn't do that.",
    503: "The model is loading, shutting down or gone.",
    529: "The model is loading, hanging or shutting down: Anthropic's word for that 503.",
}
REQUEST_ID = {
    "X-Request-Id": {
        "description": "The request's own, if it had a sane one, else one that the server made.",
        "schema": {"type": "string"},
    }
}
IGNORED = {
    "X-Switchyard-Ignored": {
        "description": "Fields that were taken and asked for nothing, with commas between them.",
        "schema": {"type": "string"},
    }
}
RETRY_AFTER = {
    "Retry-After": {
        "description": "Seconds, by the present pace.",
        "schema": {"type": "integer", "minimum": 1},
    }
}
