"""switchyard.testing: an application's own suite over a model that says what the tests script."""

import flask
import pytest

from switchyard import engine
from switchyard.app import BadRequest, ClientGone, Switchyard, TimedOut
from switchyard.app.exceptions import BudgetSpent, LimitReached, NotPermitted, Unauthorized
from switchyard.app.extension import HOST
from switchyard.app.host.remote import Remote
from switchyard.app.host.tables import TABLES
from switchyard.testing import fake, faking
from switchyard.testing.pytest_plugin import fake_switchyard  # noqa: F401  # a fixture
from tests.app.conftest import frames
from tests.conftest import run_code

ANSWERS = {
    "color": "Blue, of course.",
    "sum": "Thirty-six.",
    "the sum of all colors": "White.",
    "busy": engine.Full("as many as there can be", 7.0),
}
MODES = {"in its process": {}, "client mode": {"url": "http://127.0.0.1:1"}}


@pytest.fixture(params=list(MODES))
def host(request):
    app = flask.Flask("host")
    app.switchyard = Switchyard(app, url_prefix="/llm", **MODES[request.param])
    with fake(app, ANSWERS) as app.fake:
        yield app


def ask(question):
    return {"messages": [{"role": "user", "content": question}]}


def test_a_prompt_gets_the_answer_whose_key_comes_last(host):
    say = host.switchyard.generate
    assert say(**ask("What color?")).text == "Blue, of course."
    assert say("color, sum").text == "Thirty-six."
    assert say("the sum of all colors", max_tokens=50).text == "White."
    assert "without an answer" in say("nothing", max_tokens=50).text
    assert "What color?" in host.fake.prompts[0] and len(host.fake.prompts) == 4
    host.fake.answers["nothing"] = "Now it is: ä€😀."
    assert say("nothing", max_tokens=50).text == "Now it is: ä€😀."
    host.fake.answers["no color"] = "None."  # longer than one that ends with it
    assert say("no color").text == "None."


def test_tokens_are_told_one_by_one_and_counted(host):
    stream = host.switchyard.stream("color", max_tokens=50)
    pieces = list(stream)
    assert "".join(pieces) == stream.result.text == "Blue, of course."
    assert 1 < len(pieces) <= stream.result.completion_tokens
    cut = host.switchyard.generate("color", max_tokens=2)
    assert (cut.finish_reason, cut.completion_tokens) == ("length", 2)
    assert cut.text == "".join(pieces)[: len(cut.text)]


def test_what_is_asked_for_is_checked_as_ever(host):
    with pytest.raises(BadRequest) as caught:
        host.switchyard.generate("x", temperature="warm")
    assert caught.value.param == "temperature"
    with pytest.raises(engine.PromptTooLong) as long:
        host.switchyard.generate("x " * 100_000)
    assert long.value.prompt_tokens > long.value.limit > 1000 and not long.value.new_tokens


def test_tokens_of_a_prompt_are_counted(host):
    count, say = host.switchyard.count, host.switchyard.generate
    for given in ({"prompt": "color </s>"}, ask("What color? </s>")):
        assert count(**given) == say(**given).prompt_tokens > 3
    assert count(**ask("x " * 3000), chat_template_kwargs={}) > 3000  # beyond the context
    for wrong, kind in (
        ({"prompt": "x", "seed": 1}, BadRequest),
        ({"prompt": "x", **ask("x")}, BadRequest),
        ({"prompt": "x " * 100_000}, engine.PromptTooLong),
    ):
        with pytest.raises(kind):
            count(**wrong)


def test_client_mode_knows_any_model_and_a_process_only_its_own(host):
    client = host.test_client()
    body = {"model": "chat", "prompt": "color", "max_tokens": 50}
    if isinstance(host.extensions[HOST], Remote):
        assert host.switchyard.generate("color", model="chat").text == "Blue, of course."
        assert host.switchyard.count("color", model="no/such: one") > 0
        answer = client.post("/llm/v1/completions", json=body).json
        assert answer["choices"][0]["text"] == "Blue, of course."
    else:
        for call in (host.switchyard.generate, host.switchyard.count):
            with pytest.raises(engine.ModelNotFound):
                call("color", model="chat")
        assert client.post("/llm/v1/completions", json=body).status_code == 404


def test_a_scripted_refusal_is_not_waited_out(host):
    with pytest.raises(engine.Full):
        host.switchyard.generate("busy", timeout=30)
    assert len(host.fake.prompts) == 1
    with pytest.raises(engine.Full):
        host.switchyard.stream("busy", timeout=1)  # before it returns
    answer = host.test_client().post("/llm/v1/completions", json={"prompt": "busy"})
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "7")


@pytest.mark.parametrize(
    "error",
    [
        BadRequest("so it is", "seed", "unsupported_parameter"),
        TimedOut("so it is", "total_timeout"),
        *(ClientGone(), Unauthorized(), NotPermitted("so it is"), BudgetSpent("so it is")),
        LimitReached("so it is", 7.0, "tokens"),
        *(engine.Dead("so it is", 7.0), engine.Full("so it is", 7.0)),
        *(kind("so it is") for kind in (engine.ModelNotFound, engine.JobFailed, engine.Closed)),
    ],
    ids=lambda error: type(error).__name__,
)
def test_each_exception_of_a_host_s_handlers_can_be_scripted(host, error):
    host.fake.answers["wrong"] = error
    for _ in range(2):
        with pytest.raises(type(error)) as caught:
            host.switchyard.generate("wrong", timeout=1)
        assert type(caught.value) is type(error) and caught.value is not error
        assert str(caught.value) == str(error)
        for name in ("code", "param", "retry_after"):
            assert getattr(caught.value, name, None) == getattr(error, name, None)


@pytest.mark.parametrize("error", [TimedOut("late", "total_timeout"), engine.BatchFailed("lost")])
def test_an_exception_can_be_scripted_behind_a_text(host, error):
    host.fake.answers["cut"] = ("As far as", error)
    pieces = host.switchyard.stream("cut")
    told = ""
    with pytest.raises(type(error), match=str(error)):
        for piece in pieces:
            told += piece
    assert told == "As far as"
    with pytest.raises(type(error), match=str(error)):
        host.switchyard.generate("cut")


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (engine.Full("it is", 7.0), "no: it is"),
        (BadRequest("it is"), "no: it is"),
        (TimedOut("it is", "first_token_timeout"), "no: it is"),
        (engine.JobFailed("it is"), "no: it is"),
        (("As far", engine.BatchFailed("it is")), "As far, and no more"),
        (("As far", TimedOut("it is", "total_timeout")), "As far, and no more"),
        ("As far", "As far"),
        ("", ""),
    ],
)
def test_a_view_that_takes_the_first_piece_tells_errors_alike_in_both_modes(host, answer, told):
    def tell():
        pieces = host.switchyard.stream("far")
        first = next(pieces, "")

        def texts():
            yield first
            try:
                yield from pieces
            except (engine.EngineError, TimedOut):
                yield ", and no more"

        return flask.Response(texts(), mimetype="text/plain")

    host.errorhandler(Exception)(lambda error: (f"no: {error}", 500))
    host.get("/")(tell)
    host.fake.answers["far"] = answer
    response = host.test_client().get("/")
    assert (response.text, response.status_code) == (told, 500 if "no:" in told else 200)


def test_the_api_is_whole(host):
    visitor = host.test_client()

    def post(path, body, **more):
        return visitor.post(f"/llm/v1/{path}", json=body, **more)

    assert visitor.get("/llm/health/ready").status_code == 200
    assert visitor.get("/llm/v1/models").json["data"][0]["id"] == "demo"
    body = {"prompt": "color", "max_tokens": 50, "logprobs": 1, "n": 2}
    choices = post("completions", body).json["choices"]
    assert [choice["text"] for choice in choices] == ["Blue, of course."] * 2
    assert len(choices[0]["logprobs"]["tokens"]) > 1
    form = visitor.post("/llm/generate", data={"prompt": "color", "max_tokens": "50"})
    assert "Blue, of course." in form.text
    echoed = {**body, "n": 1, "max_tokens": 0, "echo": True}
    assert post("completions", echoed).json["choices"][0]["text"] == "color"
    streamed = frames(post("chat/completions", {**ask("color"), "stream": True}))
    texts = [c["delta"].get("content") for f in streamed for c in f["choices"]]
    assert "".join(text or "" for text in texts) == "Blue, of course."
    version = {"anthropic-version": "x"}
    told = post("messages", {**ask("color"), "max_tokens": 50}, headers=version).json
    assert told["content"][0]["text"] == "Blue, of course."
    assert visitor.get("/llm/v1/requests").json["data"] == []


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("is_first", [True, False], ids=["before ours", "behind ours"])
def test_a_host_may_have_a_blueprint_named_switchyard_and_handle_who_leaves_itself(mode, is_first):
    app = flask.Flask("host")
    blueprint = flask.Blueprint("switchyard", "host")
    blueprint.add_url_rule("/mine", "mine", lambda: flask.url_for("switchyard.mine"))

    def set_up():
        app.register_blueprint(blueprint)
        app.errorhandler(ClientGone)(lambda error: ("gone", 418))

    if is_first:
        set_up()
    switchyard = Switchyard(app, url_prefix="/llm", **mode)
    if not is_first:
        set_up()
    app.get("/")(lambda: switchyard.generate("gone").text)
    with fake(app, {"gone": ClientGone()}):
        visitor = app.test_client()
        assert visitor.get("/mine").text == "/mine"
        assert visitor.get("/llm/health/ready").status_code == 200
        assert visitor.get("/").status_code == 418


def test_an_application_has_its_own_models_again(model_path):
    app = flask.Flask("host")
    switchyard = Switchyard(app, model=model_path)
    own = switchyard.models
    with fake(app, ANSWERS):
        assert switchyard.models is not own
        with switchyard:
            assert switchyard.generate("color").text == "Blue, of course."
        with pytest.raises(engine.Dead, match="closed"):
            switchyard.generate("color")
        switchyard.start()
        assert switchyard.generate("color").text == "Blue, of course."
    assert switchyard.models is own and not own.get().is_started


@pytest.mark.parametrize(("first", "then"), [(0, "Green."), (1, "Red.")])
def test_a_second_script_holds_until_its_end_and_then_the_first_again(host, first, then):
    fakes = [fake(host, {"color": color}) for color in ("Red.", "Green.")]
    told = [host.switchyard.generate("color").text]
    for one in (fakes[first], fakes[1 - first]):
        one.close()
        told.append(host.switchyard.generate("color").text)
    assert told == ["Green.", then, "Blue, of course."]


def test_a_visitor_who_leaves_is_no_fault_of_the_host(host, caplog):
    host.errorhandler(500)(lambda error: ("broken", 500))
    host.get("/")(lambda: host.switchyard.generate("gone").text)
    host.fake.answers["gone"] = ClientGone()
    assert host.test_client().get("/").status_code == 499
    assert not caplog.records


def test_a_machine_without_the_model_can_run_the_suite(fake_switchyard):  # noqa: F811
    app = flask.Flask("host")
    switchyard = Switchyard(app, model="/models/mine")
    fake_switchyard(app, ANSWERS)
    assert switchyard.generate("color").text == "Blue, of course."
    assert app.test_client().get("/v1/models").json["data"][0]["id"] == "mine"


ROUNDS = """
import flask, gc, sys, threading
from switchyard import Switchyard
from switchyard.testing import fake
def resident():
    gc.collect()
    return int(open('/proc/self/statm').read().split()[1])
sizes = []
for _ in range(5):
    app = flask.Flask('host')
    switchyard = Switchyard(app)
    with fake(app, {'x': 'y'}):
        assert switchyard.generate('x').text == 'y'
        assert app.test_client().get('/health/ready').status_code == 200
        assert threading.active_count() == 1
    assert threading.active_count() == 1
    sizes.append(resident())
assert not {'torch', 'exllamav2'} & set(sys.modules)
assert sizes[-1] < 1.03 * sizes[1], sizes
"""


def test_no_torch_is_imported_and_memory_and_threads_stay():
    run_code(ROUNDS)


def test_what_is_said_again_gets_its_answer_again(host):
    said = ["color", "Blue, of course.", "sum", "Thirty-six.", "color"]
    roles = ["user", "assistant"] * 3
    turns = [{"role": role, "content": text} for role, text in zip(roles, said, strict=False)]
    assert host.switchyard.generate(messages=turns[:3]).text == "Thirty-six."
    assert host.switchyard.generate(messages=turns).text == "Blue, of course."


def test_what_is_generated_ends_at_the_first_stop_string(host):
    say = host.switchyard.generate
    for stop in ([",", "x"], ["course", ","]):
        stopped = say("color", stop=stop)
        assert (stopped.text, stopped.finish_reason) == ("Blue", "stop")
    assert say("color", stop=[","], include_stop_str_in_output=True).text == "Blue,"
    body = {"prompt": "color", "stop": ["course"], "max_tokens": 1}
    [cut] = host.test_client().post("/llm/v1/completions", json=body).json["choices"]
    assert (cut["finish_reason"], cut.get("stop_reason")) == ("length", None)


def test_tokens_of_a_prompt_and_of_an_answer_are_certain(host):
    body = {"prompt": "color", "max_tokens": 3, "echo": True, "logprobs": 1}
    [choice] = host.test_client().post("/llm/v1/completions", json=body).json["choices"]
    first, *logprobs = choice["logprobs"]["token_logprobs"]
    assert first is None and set(logprobs) == {0.0}
    assert len(logprobs) + 1 == len(choice["logprobs"]["tokens"]) > 4


def test_a_fixture_s_fakes_end_with_it(model_path):
    app = flask.Flask("host")
    open_before = TABLES.open
    with faking() as fake:
        switchyard = Switchyard(app, model=model_path)
        own = switchyard.models
        made = fake(app, ANSWERS)
        assert switchyard.generate("color").text == made.answers["color"]
        del made.answers["color"]
        assert "color" in ANSWERS  # which is copied
    assert switchyard.models is own and TABLES.open is open_before


def test_an_application_without_the_extension_says_so():
    with pytest.raises(RuntimeError, match="the application plain has no Switchyard: call init"):
        fake(flask.Flask("plain"), {})
