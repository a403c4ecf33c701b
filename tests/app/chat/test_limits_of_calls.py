"""How many calls an answer may have, by every way in which tools are chosen."""

import pytest

from tests.app.chat.test_tools import CALL, CALLS, QUESTION, TIME, URL, WEATHER
from tests.scripted import ScriptedBackend, says


def allowed(mode):
    tools = [{"type": "function", "function": {"name": t["function"]["name"]}}
             for t in (WEATHER, TIME)]  # fmt: skip
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize("parallel", [None, True, False])
@pytest.mark.parametrize("choice", ["auto", allowed("auto"), "required", allowed("required")])
def test_one_call_at_a_time_holds_for_each_choice_of_tools(make_client, choice, parallel):
    client = make_client(ScriptedBackend(says(*CALLS)))
    body = {**QUESTION, "tool_choice": choice, "parallel_tool_calls": parallel}
    if parallel is None:
        del body["parallel_tool_calls"]
    response = client.post(URL, json=body)
    assert response.status_code == 200, response.json
    [answer] = response.json["choices"]
    names = [call["function"]["name"] for call in answer["message"]["tool_calls"]]
    assert names == (["get_weather"] if parallel is False else ["get_weather", "get_time"])
    assert CALL[0].startswith(answer["message"]["content"])
