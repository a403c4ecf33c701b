"""Two models of one server: their clients, a swap in the midst, and the command for operators."""

import itertools
import json
import shutil
from collections import Counter

import pytest

from tests.conftest import DEMO, make_model
from tests.live.conftest import GUNICORN, Server, run_command
from tests.live.test_serving import in_threads

NUM_CLIENTS = 64
PROMPTS = ["Once upon a time", "One day, a girl", "The dog", "Lily"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory, model_path):
    """A server of the demo model, a random one, and one whose directory lacks its configuration;
    another is in `models_dir`.
    """
    path = tmp_path_factory.mktemp("several")
    make_model(str(path / "models" / "other"), "--num-layers", "2", "--seed", "1")
    shutil.copytree(model_path, path / "broken", ignore=shutil.ignore_patterns("config.json"))
    (path / "switchyard.toml").write_text(f"""
        models_dir = "{path}/models"
        reserve_threads = {NUM_CLIENTS}

        [[models]]
        name = "demo"
        model = "{DEMO}"
        aliases = ["chat"]

        [[models]]
        name = "random"
        model = "{model_path}"
        load = "demand"

        [[models]]
        name = "broken"
        model = "{path}/broken"
        load = "demand"
    """)
    server = Server(GUNICORN, path, config=path / "switchyard.toml")
    server.path = path
    yield server.wait_until_ready()
    assert server.stop() == 0, server.output


def ask(server, model, prompt, stream=False):
    """The fingerprint of the weights that have answered, and the text."""
    body = {"model": model, "prompt": prompt, "max_tokens": 8, "temperature": 0, "stream": stream}
    response = server.post("/v1/completions", body)
    assert response.status_code == 200, response.text
    events = [event.removeprefix("data: ") for event in response.text.split("\n\n")]
    bodies = [json.loads(event) for event in events if event and event != "[DONE]"]
    [fingerprint] = {body["system_fingerprint"] for body in bodies}
    return fingerprint, "".join(c["text"] for body in bodies for c in body["choices"])


def run(server, *arguments):
    return run_command("models", "--url", server.url, *arguments)


def test_clients_of_both_get_their_own_texts_over_a_swap(pair):
    expected = {}
    for model, prompt in itertools.product(("demo", "random"), PROMPTS):
        fingerprint, text = ask(pair, model, prompt)
        expected[fingerprint, prompt] = text
    found = Counter()

    def client(number):
        if number == NUM_CLIENTS:
            told = run(pair, "load", "random", "--model", "other")
            assert told.returncode == 0 and "beside the old one" in told.stdout, told
            return
        model = ("demo", "random")[number % 2]
        for i in range(6):
            prompt = PROMPTS[(number + i) % len(PROMPTS)]
            found[model, prompt, *ask(pair, model, prompt, stream=i % 2 == 0)] += 1

    in_threads(client, range(NUM_CLIENTS + 1))
    assert sum(found.values()) == 6 * NUM_CLIENTS
    for prompt in PROMPTS:
        fingerprint, text = ask(pair, "random", prompt)
        assert (fingerprint, prompt) not in expected  # other weights have answered
        expected[fingerprint, prompt] = text
    assert len({text for (_, prompt), text in expected.items() if prompt == PROMPTS[0]}) == 3
    for _, prompt, fingerprint, text in found:
        assert expected[fingerprint, prompt] == text


def test_the_command_changes_what_is_loaded(pair):
    assert ask(pair, "random", PROMPTS[0])  # which loads it
    told = run(pair, "list").stdout
    assert "demo: loaded, also chat" in told and "random: loaded" in told
    rows = json.loads(run(pair, "list", "--json").stdout)
    assert [row["id"] for row in rows] == ["demo", "random", "broken"]
    nowhere = run(pair, "load", "nothere")
    assert nowhere.returncode == 1 and "available: demo, random, broken, other" in nowhere.stderr
    assert run(pair, "unload", "random", "--drain", "5").returncode == 0
    done = run(pair, "load", "random", "--set", "cache_tokens=4096")
    assert done.returncode == 0 and "random was loaded" in done.stdout
    done = run(pair, "alias", "chat", "random")
    assert done.stdout == "chat now refers to random, instead of demo\n"
    assert ask(pair, "chat", PROMPTS[0])[0] == ask(pair, "random", PROMPTS[0])[0]
    done = run(pair, "load", "random", "--set", "cache_tokens=100")
    assert done.returncode == 1 and "cache_tokens must be a multiple of 256" in done.stderr


def test_no_model_takes_more_than_this_machine_has(pair):
    assert ask(pair, "random", PROMPTS[0])  # which loads it: a refused load must cost nothing
    done = run(pair, "load", "random", "--set", "cache_tokens=2560000000")
    assert done.returncode == 1 and "409: no room for the model" in done.stderr
    assert pair.get("/health/ready").status_code == 200
    assert ask(pair, "random", PROMPTS[0])


def test_a_broken_model_is_listed_with_the_reason_and_serves_once_it_is_mended(pair, model_path):
    assert "broken: failed, " in (told := run(pair, "list").stdout)
    assert f"  model directory {pair.path}/broken has no config.json" in told
    refused = pair.post("/v1/completions", {"model": "broken", "prompt": "a"})
    assert refused.status_code == 503 and refused.json()["error"]["code"] == "model_failed"
    assert "has no config.json" in refused.json()["error"]["message"]
    shutil.copy(f"{model_path}/config.json", pair.path / "broken")
    done = run(pair, "load", "broken")
    assert done.returncode == 0 and "broken was loaded" in done.stdout
    assert ask(pair, "broken", PROMPTS[0])
