"""How models of each family write calls, and what three APIs make of them."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from tests.tokenizers.asking import Asking
from tests.tokenizers.chats import TOOLS

Calls = Sequence[tuple[str, dict]]  # names and arguments
Tools = Sequence[dict]  # as chats have them


def text_of(family: str, calls: Calls) -> str:
    """The calls as a model of the family writes them, as its template or its makers show."""
    written = [(name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in calls]
    match family:
        case "mistral_nemo":
            items = [f'{{"name": "{name}", "arguments": {text}}}' for name, text in written]
            return f"[TOOL_CALLS][{', '.join(items)}]"
        case "llama3_2":
            items = [f'{{"name": "{name}", "parameters": {text}}}' for name, text in written]
            return "; ".join(items)
        case "deepseek_v3":
            items = [
                f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{text}\n```<｜tool▁call▁end｜>"
                for name, text in written
            ]
            return f"<｜tool▁calls▁begin｜>{chr(10).join(items)}<｜tool▁calls▁end｜>"
    items = [
        f'<tool_call>\n{{"name": "{name}", "arguments": {text}}}\n</tool_call>'
        for name, text in written
    ]
    return "\n".join(items)


OWN = ("qwen2_5", "qwen3", "mistral_nemo", "llama3_2", "deepseek_v3")  # have their own form


def opening(family: str) -> str:
    """The text of a family's own form up to the name of the first tool; empty for the server's."""
    text = text_of(family, [("NAME", {})]).partition("NAME")[0].replace("\n", " ")
    return text if family in OWN else ""


class Said(NamedTuple):
    """An answer, in whatever form it came."""

    text: str
    calls: list[tuple[str, dict]]
    message: list[dict]  # to send back

    @property
    def told(self) -> tuple[str, list[tuple[str, dict]]]:
        return self.text, self.calls


def of_chat(
    served: Asking, messages: list[dict], streams: bool, tools: Tools = TOOLS, **more: object
) -> Said:
    body = {"messages": messages, "tools": tools, "max_tokens": 200, **more}
    if not streams:
        message = served.post("/v1/chat/completions", body)["choices"][0]["message"]
    else:
        text, parts = "", []
        frames = served.stream("/v1/chat/completions", body)
        for delta in (choice["delta"] for frame in frames for choice in frame["choices"]):
            text += delta.get("content") or ""
            for part in delta.get("tool_calls", ()):
                if part["index"] == len(parts):
                    parts.append(part)
                else:
                    function = parts[part["index"]]["function"]
                    function["arguments"] += part["function"]["arguments"]
        message = {"role": "assistant", "content": text, "tool_calls": parts}
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    calls = [(one["name"], json.loads(one["arguments"])) for one in functions]
    return Said(message["content"] or "", calls, [message])


def of_responses(
    served: Asking, messages: list[dict], streams: bool, tools: Tools = TOOLS, **more: object
) -> Said:
    functions = [{"type": "function", **tool["function"]} for tool in tools]
    if isinstance(form := more.pop("response_format", None), dict):
        more["text"] = {"format": {"type": "json_schema", **form["json_schema"]}}
    if isinstance(choice := more.get("tool_choice"), dict):
        more["tool_choice"] = {"type": "function", **choice["function"]}
    body = {"input": messages, "tools": functions, "max_output_tokens": 200, **more}
    if streams:
        events = served.stream("/v1/responses", body)
        items = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    else:
        items = served.post("/v1/responses", body)["output"]
    parts = [part for item in items if item["type"] == "message" for part in item["content"]]
    called = [item for item in items if item["type"] == "function_call"]
    calls = [(one["name"], json.loads(one["arguments"])) for one in called]
    return Said("".join(part["text"] for part in parts), calls, items)


def of_messages(
    served: Asking, messages: list[dict], streams: bool, tools: Tools = TOOLS, **more: object
) -> Said:
    names = {"parameters": "input_schema"}
    functions = [
        {names.get(name, name): value for name, value in tool["function"].items()} for tool in tools
    ]
    if isinstance(form := more.pop("response_format", None), dict):
        schema = form["json_schema"]["schema"]
        more["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
    parallel = more.pop("parallel_tool_calls", None)
    choice = more.pop("tool_choice", "auto")
    if isinstance(choice, dict):
        more["tool_choice"] = {"type": "tool", "name": choice["function"]["name"]}
    else:
        more["tool_choice"] = {"type": {"required": "any"}.get(choice, choice)}
    if parallel is not None:
        more["tool_choice"]["disable_parallel_tool_use"] = not parallel
    body = {"messages": messages, "tools": functions, "max_tokens": 200, **more}
    if streams:
        blocks = _blocks(served.stream("/v1/messages", body))
    else:
        blocks = served.post("/v1/messages", body)["content"]
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    calls = [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]
    return Said(text, calls, [{"role": "assistant", "content": blocks}])


def _blocks(events: list[dict]) -> list[dict]:
    blocks: list[dict] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"])
            written = ""
        elif event["type"] == "content_block_delta":
            match event["delta"]:
                case {"text": text}:
                    blocks[-1]["text"] += text
                case {"partial_json": text}:
                    written += text
        elif event["type"] == "content_block_stop" and blocks[-1]["type"] == "tool_use":
            blocks[-1]["input"] = json.loads(written)
    return blocks


def results(route: str, said: Said, text: str) -> list[dict]:
    """The results of an answer's calls, all `text`, as the client of a route sends them."""
    if route == "responses":
        ids = [item["call_id"] for item in said.message if item["type"] == "function_call"]
        return [{"type": "function_call_output", "call_id": one, "output": text} for one in ids]
    [message] = said.message
    if route == "chat":
        ids = [call["id"] for call in message["tool_calls"]]
        return [{"role": "tool", "tool_call_id": one, "content": text} for one in ids]
    ids = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
    blocks = [{"type": "tool_result", "tool_use_id": one, "content": text} for one in ids]
    return [{"role": "user", "content": blocks}]


ROUTES = {"chat": of_chat, "responses": of_responses, "messages": of_messages}
