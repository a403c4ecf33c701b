"""Calls of clients of Ollama's API at the server URL, and what came of them as JSON.

Usage: ollama_calls.py CLIENT URL
"""

import json
import sys
import time
import urllib.request

name, url = sys.argv[1:]
MODEL = "demo"
HELLO = "Hello! What can you do?"
TOLD = "The secret word is heliotrope. Say it."
ASK = "What is the secret word in notes.txt?"


def read_file(path: str) -> str:
    """Reads a file.

    Args:
      path: Of the file.
    """
    return "The secret word is heliotrope." if path == "notes.txt" else "?"


def num_running():
    with urllib.request.urlopen(f"{url}/v1/requests") as answer:
        return len(json.load(answer)["data"])


def idle_within(seconds):
    until = time.monotonic() + seconds
    while (busy := num_running()) and time.monotonic() < until:
        time.sleep(0.05)
    return not busy


def ollama():
    from ollama import Client, ResponseError
    from pydantic import BaseModel

    class Secret(BaseModel):
        word: str

    client = Client(host=url)

    def status_of(call, **arguments):
        try:
            list(call(**arguments))
        except ResponseError as error:
            return [error.status_code, error.error]
        return None

    def chat(text, **more):
        return client.chat(model=MODEL, messages=[{"role": "user", "content": text}], **more)

    [listed] = client.list().models
    [running] = client.ps().models
    shown = client.show(MODEL)
    streamed = list(chat(HELLO, stream=True))
    generated = client.generate(model=MODEL, prompt=HELLO)
    pieces = list(client.generate(model=MODEL, prompt=HELLO, stream=True))
    again = client.generate(model=MODEL, prompt="More?", context=generated.context)
    messages = [{"role": "user", "content": ASK}]
    asked = client.chat(model=MODEL, messages=messages, tools=[read_file])
    [call] = asked.message.tool_calls
    text = read_file(**call.function.arguments)
    messages += [asked.message, {"role": "tool", "content": text, "tool_name": call.function.name}]
    answered = client.chat(model=MODEL, messages=messages, tools=[read_file])
    called = [
        call.function.name
        for part in chat(ASK, tools=[read_file], stream=True)
        for call in part.message.tool_calls or ()
    ]
    thought = chat("Think first.", think=True)
    left = client.generate(
        model=MODEL, prompt=HELLO, stream=True, options={"num_predict": 3000, "ignore_eos": True}
    )
    next(left)
    was_running = num_running()
    left.close()
    return {
        "models": [listed.model, running.model, shown.details.family, shown.capabilities],
        "expires": running.expires_at.year,
        "pulled": client.pull(MODEL).status,
        "chat": chat(HELLO).message.content,
        "streamed": "".join(part.message.content for part in streamed),
        "end": [streamed[-1].done_reason, streamed[-1].eval_count, streamed[-1].created_at[-1]],
        "generated": generated.response,
        "pieces": "".join(part.response for part in pieces),
        "grown": len(again.context) > len(generated.context),
        "arguments": call.function.arguments,
        "answered": answered.message.content[:19],
        "called": called,
        "form": Secret.model_validate_json(
            chat(TOLD, format=Secret.model_json_schema()).message.content
        ).word,
        "thought": [thought.message.thinking, thought.message.content],
        "cut": chat(
            HELLO, options={"num_predict": 2, "temperature": 0, "num_ctx": 4096}
        ).eval_count,
        "loaded": client.generate(model=MODEL).done_reason,
        "cancelled": [was_running, idle_within(10)],
        "errors": {
            "model": status_of(client.chat, model="other", messages=messages),
            "stream": status_of(client.chat, model="other", messages=messages, stream=True),
            "option": status_of(client.generate, model=MODEL, prompt="x", options={"top_p": 3}),
            "embed": status_of(client.embed, model=MODEL, input="x"),
        },
    }


def langchain():
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_ollama import ChatOllama

    model = ChatOllama(model=MODEL, base_url=url)
    messages = [HumanMessage(ASK)]
    asked = model.bind_tools([read_file]).invoke(messages)
    [call] = asked.tool_calls
    messages += [asked, ToolMessage(read_file(**call["args"]), tool_call_id=call["id"])]
    return {
        "chat": model.invoke(HELLO).content,
        "streamed": "".join(part.content for part in model.stream(HELLO)),
        "arguments": call["args"],
        "answered": model.bind_tools([read_file]).invoke(messages).content[:19],
    }


def llama_index():
    from llama_index.core.llms import ChatMessage
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.ollama import Ollama

    model = Ollama(model=MODEL, base_url=url, request_timeout=60)
    tool = FunctionTool.from_defaults(read_file)
    asked = model.chat_with_tools([tool], user_msg=ASK)
    [call] = model.get_tool_calls_from_response(asked)
    result = ChatMessage(
        role="tool",
        content=read_file(**call.tool_kwargs),
        additional_kwargs={"tool_call_id": call.tool_id},
    )
    history = [ChatMessage(role="user", content=ASK), asked.message, result]
    answered = model.chat_with_tools([tool], chat_history=history)
    return {
        "chat": model.chat([ChatMessage(role="user", content=HELLO)]).message.content,
        "streamed": "".join(p.delta for p in model.stream_complete(HELLO)),
        "arguments": call.tool_kwargs,
        "answered": answered.message.content[:19],
    }


found = {"ollama": ollama, "langchain": langchain, "llama_index": llama_index}[name]()
json.dump(found, sys.stdout)
