"""A model that thinks gives lm_eval the same answers with stops as without."""

import io
import json
import pathlib
import threading

import pytest
import werkzeug.serving

from tests.app.conftest import make_client, way
from tests.app.taught import CHATS, Teacher
from tests.conftest import DEMO
from tests.layouts import lay_out
from tests.lm_eval.evaluated import HERE, evaluate

__all__ = ["make_client", "way"]
pytestmark = pytest.mark.lm_eval

STOPS = ["\n", ".", "Q:", "So"]
TASKS = {"with_stops": STOPS, "without_stops": []}
THOUGHTS = "<think>\nQ: a sum. So I add.\n\nSo it is done.\n</think>\n\n"
SUMS = [json.loads(line) for line in pathlib.Path(HERE, "sums.jsonl").read_text().splitlines()]


@pytest.fixture
def url(make_client, tmp_path):
    """The URL of a model that thinks, and then answers a question of SUMS, perhaps with more."""
    teacher = Teacher(make_client, lay_out("added", DEMO, tmp_path / "model"))
    serve = teacher.client.application.wsgi_app

    def application(environ, start_response):
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        asked = json.loads(body)
        [answer] = [one["answer"] for one in SUMS if one["question"] in str(asked["messages"])]
        teacher.write(f"{THOUGHTS}{answer}{'.' if asked['stop'] else ''}")
        return serve({**environ, "wsgi.input": io.BytesIO(body)}, start_response)

    server = werkzeug.serving.make_server("127.0.0.1", 0, application)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}{CHATS[0]}"
    server.shutdown()
    thread.join()
    server.server_close()


def write_task(directory, name, until):
    task = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": f"{HERE}/sums.jsonl"}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "answer",
        "generation_kwargs": {"until": until, "max_gen_toks": 200},
        "metric_list": [{"metric": "exact_match"}],
    }
    (directory / f"{name}.yaml").write_text(json.dumps(task))  # which YAML is, too


def test_stops_change_no_answer_of_a_model_that_thinks(url, tmp_path):
    for name, until in TASKS.items():
        write_task(tmp_path, name, until)
    arguments = {"model": "scripted", "base_url": url, "tokenizer_backend": "None"}
    options = ["--model", "local-chat-completions", "--apply_chat_template"]
    found = evaluate(tmp_path, TASKS, arguments, *options, "--include_path", str(tmp_path))
    for name in TASKS:
        answers = [sample["filtered_resps"] for sample in found[name]]
        assert answers == [[one["answer"]] for one in SUMS], name
