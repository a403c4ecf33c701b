"""A model that writes what a test says wherever its constraint lets it, asked on each route."""

import json

from tests.app.conftest import frames, named_events
from tests.conftest import DEMO
from tests.engine.forced import exl2_backend

CHATS = ("/v1/chat/completions", "/v1/responses", "/v1/messages")
ROUTES = (*CHATS, "/v1/completions")
OLLAMA = "/api/chat"


class Teacher:
    """The real generator over a script. One request at a time."""

    def __init__(self, make_client, path=DEMO, **settings):
        self._script = []
        self._end = 0  # a load tries the model, too
        backend = exl2_backend(path, logits=self._logits)
        self.client = make_client(backend, path=path, **settings)
        self.model = self.client.models.get()
        [self._end, *_] = self.model.tokenizer.eos_token_ids

    def _logits(self, _):
        return {self._script.pop(0) if self._script else self._end: 0.0}

    def write(self, text):
        """What the model writes next."""
        self._script[:] = self.model.tokenizer._encode_escaped(text)

    def ask(self, route, streams, text, /, **more):
        """What the answer holds if the model would write `text`, as `told` has it."""
        return told(route, streams, self.post(route, streams, text, **more))

    def post(self, route, streams, text, /, **more):
        self.write(text)
        # Flask's own `json` sorts the keys.
        headers = {"Content-Type": "application/json"}
        data = json.dumps(body_of(route, streams, **more))
        return self.client.post(route, data=data, headers=headers)


def body_of(route, streams, /, said="Hi", **more):
    """A request, of up to 200 tokens and greedy unless `more` says otherwise."""
    body = {"temperature": 0, "stream": streams, LIMITS.get(route, "max_tokens"): 200}
    if route == "/v1/completions":
        body["prompt"] = said
    else:
        messages = [{"role": "user", "content": said}]
        body["input" if route == "/v1/responses" else "messages"] = messages
    return {**body, **more}


def told(route, streams, response):
    """What an answer holds: its text, and its calls as names and the arguments' texts. In a stream
    it holds the same.
    """
    assert response.status_code == 200, response.get_data(as_text=True)
    return READERS[route][streams](response if streams else response.json)


LIMITS = {"/v1/responses": "max_output_tokens"}


def tools_of(route, schema, must=True):
    """A tool that must be called, or one that is called by its schema or not at all."""
    function = {"name": "get_weather", "parameters": schema, "strict": not must}
    choice = "required" if must else "auto"
    if route == "/v1/messages":
        tool = {"name": "get_weather", "input_schema": schema, "strict": not must}
        return {"tools": [tool], "tool_choice": {"type": "any" if must else "auto"}}
    tool = {"type": "function", **function}
    if route == "/v1/chat/completions":
        tool = {"type": "function", "function": function}
    return {"tools": [tool], "tool_choice": choice}


def form_of(route, schema):
    match route:
        case "/v1/responses":
            return {"text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}}
        case "/v1/messages":
            return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
        case "/api/chat":
            return {"format": schema}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return {"response_format": form}


def _chat(body):
    message = body["choices"][0]["message"]
    called = [call["function"] for call in message.get("tool_calls") or ()]
    return message["content"] or "", [(c["name"], c["arguments"]) for c in called]


def _chat_stream(response):
    text, calls = "", []
    for body in frames(response):
        for choice in body["choices"]:
            text += choice["delta"].get("content") or ""
            for part in choice["delta"].get("tool_calls") or ():
                function = part["function"]
                if "name" in function:
                    calls.append((function["name"], ""))
                name, arguments = calls.pop()
                calls.append((name, arguments + (function.get("arguments") or "")))
    return text, calls


def _responses(body):
    items = body["output"]
    parts = [part for item in items if item["type"] == "message" for part in item["content"]]
    called = [item for item in items if item["type"] == "function_call"]
    return "".join(p["text"] for p in parts), [(c["name"], c["arguments"]) for c in called]


def _responses_stream(response):
    events = named_events(response)
    kinds = ("response.output_text.delta", "response.output_item.done")
    deltas, items = ([e for e in events if e["type"] == kind] for kind in kinds)
    text, calls = _responses({"output": [event["item"] for event in items]})
    assert "".join(event["delta"] for event in deltas) == text
    return text, calls


def _messages(body):
    text = "".join(block["text"] for block in body["content"] if block["type"] == "text")
    called = [block for block in body["content"] if block["type"] == "tool_use"]
    return text, [(c["name"], json.dumps(c["input"])) for c in called]


def _messages_stream(response):
    text, calls = "", []
    for event in named_events(response):
        if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use":
            calls.append((event["content_block"]["name"], ""))
        elif event["type"] == "content_block_delta":
            text += event["delta"].get("text", "")
            if "partial_json" in event["delta"]:
                name, arguments = calls.pop()
                calls.append((name, arguments + event["delta"]["partial_json"]))
    return text, calls


def _ollama_stream(response):
    lines = map(json.loads, response.get_data(as_text=True).splitlines())
    return "".join(line["message"]["content"] for line in lines), []


READERS = {
    "/v1/chat/completions": (_chat, _chat_stream),
    "/v1/responses": (_responses, _responses_stream),
    "/v1/messages": (_messages, _messages_stream),
    OLLAMA: (lambda body: (body["message"]["content"], []), _ollama_stream),
    "/v1/completions": (
        lambda body: (body["choices"][0]["text"], []),
        lambda response: ("".join(b["choices"][0]["text"] for b in frames(response)), []),
    ),
}
