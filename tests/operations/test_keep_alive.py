"""`keep_alive` of Ollama's API: an admin's key sets how long a model stays loaded."""

import pytest

from tests.conftest import wait_for
from tests.operations.conftest import bearer
from tests.scripted import ScriptedBackend, says

pytestmark = pytest.mark.both_ways

CHAT = {"messages": [{"role": "user", "content": "x"}]}


def test_only_an_admins_key_sets_it(make_keyed):
    client = make_keyed(ScriptedBackend(says("x")))
    models = client.models

    def ask(who, keep_alive, **body):
        response = client.post(
            "/api/chat", json={**body, "keep_alive": keep_alive}, headers=bearer(who)
        )
        response.get_data()
        return response

    told = ask("ann", "5m", **CHAT)
    assert (told.status_code, told.headers["X-Switchyard-Ignored"]) == (200, "keep_alive")
    assert models.served().idle_timeout == 0
    assert ask("ann", 0).status_code == 403
    assert ask("root", "5m", **CHAT).status_code == 200
    assert models.served().idle_timeout == 300
    assert 0 < models.status().idle_left <= 300
    assert ask("root", -1).text.count('"load"') == 1
    assert models.served().idle_timeout == 0 and models.status().idle_left is None
    assert ask("root", 0, **CHAT).status_code == 200
    wait_for(lambda: models.status().state == "unloaded")
