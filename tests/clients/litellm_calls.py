"""Calls of litellm at the server URL, and what came of them as JSON. Usage: litellm_calls.py URL"""

import json
import sys

import litellm

url = sys.argv[1]
ROUTES = {
    "openai": {"model": "openai/demo", "api_base": f"{url}/v1"},
    "anthropic": {"model": "anthropic/demo", "api_base": url},
}
HELLO = [{"role": "user", "content": "Hello! What can you do?"}]
TOO_LONG = [{"role": "user", "content": "word " * 4000}]


def ask(route, messages, **more):
    return litellm.completion(
        **{"api_key": "none", "temperature": 0, "max_tokens": 64, "num_retries": 0},
        **ROUTES[route],
        messages=messages,
        **more,
    )


def whole(route):
    response = ask(route, HELLO)
    [choice] = response.choices
    return [choice.message.content, choice.finish_reason, response.usage.completion_tokens]


def streamed(route):
    chunks = list(ask(route, HELLO, stream=True, stream_options={"include_usage": True}))
    response = litellm.stream_chunk_builder(chunks, messages=HELLO)
    [choice] = response.choices
    return [choice.message.content, choice.finish_reason, response.usage.completion_tokens]


def refused(route, **more):
    try:
        list(ask(route, TOO_LONG, **more))
    except litellm.ContextWindowExceededError as error:
        return ["ContextWindowExceededError", error.status_code, error.message]
    except Exception as error:
        return [type(error).__name__, None, str(error)]
    return ["no error", None, None]


found = {
    route: {
        "whole": whole(route),
        "streamed": streamed(route),
        "refused": refused(route),
        "refused_stream": refused(route, stream=True),
    }
    for route in ROUTES
}
json.dump(found, sys.stdout)
