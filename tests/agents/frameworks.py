"""Frameworks that ask for tools and a form of the output in one request, and what each has made of
it, as JSON. Usage: frameworks.py FRAMEWORK BASE_URL
"""

import json
import re
import sys

import openai
from pydantic import BaseModel

name, url = sys.argv[1:]
ASK = "What is the secret word in notes.txt?"


class Secret(BaseModel):
    word: str


def read_file(path: str) -> str:
    """Reads a file."""
    return "The secret word is heliotrope." if path == "notes.txt" else "?"


def openai_agents(is_responses):
    import agents

    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
    kind = agents.OpenAIResponsesModel if is_responses else agents.OpenAIChatCompletionsModel
    agent = agents.Agent(
        name="reader",
        model=kind(model="agent", openai_client=client),
        tools=[agents.function_tool(read_file)],
        output_type=Secret,
    )
    return agents.Runner.run_sync(agent, ASK).final_output


def pydantic_ai():
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel("agent", provider=OpenAIProvider(base_url=url, api_key="none"))
    agent = Agent(model, tools=[read_file], output_type=NativeOutput(Secret))
    return agent.run_sync(ASK).output


def langchain():
    """It runs no tools by itself."""
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(base_url=url, api_key="none", model="agent", max_retries=0)
    bound = model.bind_tools([read_file], response_format=Secret, strict=True)
    called = bound.invoke([HumanMessage(ASK)])
    [call] = called.tool_calls
    result = ToolMessage(read_file(**call["args"]), tool_call_id=call["id"])
    answer = bound.invoke([HumanMessage(ASK), called, result])
    return Secret.model_validate_json(answer.text)


def with_instructor():
    """It runs no tools: one has been called before."""
    import instructor

    client = instructor.from_openai(
        openai.OpenAI(base_url=url, api_key="none", max_retries=0), mode=instructor.Mode.JSON_SCHEMA
    )
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    function = {"name": "read_file", "arguments": '{"path": "notes.txt"}'}
    return client.chat.completions.create(
        model="agent",
        response_model=Secret,
        max_retries=0,
        tools=[{"type": "function", "function": {"name": "read_file", "parameters": schema}}],
        messages=[
            {"role": "user", "content": ASK},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": read_file("notes.txt")},
        ],
    )


def semantic_kernel():
    """At its defaults: the server keeps the conversation. The last turn is streamed."""
    import asyncio

    from semantic_kernel.agents import OpenAIResponsesAgent
    from semantic_kernel.functions import kernel_function

    class Files:
        @kernel_function(name="read_file")
        def read(self, path: str) -> str:
            return read_file(path)

    async def converse():
        client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
        agent = OpenAIResponsesAgent(ai_model_id="agent", client=client, plugins=[Files()])
        first = await agent.get_response(ASK)
        second = await agent.get_response("Say it again.", thread=first.thread)
        told = [str(first.message), str(second.message), ""]
        async for piece in agent.invoke_stream("And again.", thread=second.thread):
            told[-1] += str(piece.message)
        return told

    words = [re.findall(r"It says (\w+)\.", text) for text in asyncio.run(converse())]
    [[word]] = {tuple(found) for found in words}
    return Secret(word=word)


RUN = {
    "semantic-kernel": semantic_kernel,
    "openai-agents": lambda: openai_agents(is_responses=False),
    "openai-agents-responses": lambda: openai_agents(is_responses=True),
    "pydantic-ai": pydantic_ai,
    "langchain": langchain,
    "instructor": with_instructor,
}
print(json.dumps(RUN[name]().model_dump()))
