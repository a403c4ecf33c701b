"""The command `switchyard`: what it says, and its exit status."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys

import click
import gunicorn
import pytest

from switchyard import __version__, engine
from switchyard.app.chat.template import ChatTemplate, Conversation
from switchyard.cli import COMMANDS, main
from switchyard.cli import check as CHECK
from switchyard.cli.serve import _chosen
from switchyard.cli.server import url_of_settings
from tests.conftest import DEMO, ROOT, run_code

DEMO_EXL2 = f"{DEMO}-exl2"


def test_help_names_each_command(switchyard):
    for arguments in (["--help"], ["-h"], ["check", "--help"], ["doctor", "-h"]):
        assert "Usage" in switchyard.told(0, *arguments)
    context = click.Context(main, terminal_width=200)
    for name, (_, _, text) in COMMANDS.items():
        command = main.get_command(context, name)
        assert command.name == name and command.get_short_help_str(200) == text
        assert f"  {name} " in main.get_help(context) and text in main.get_help(context)
    assert switchyard("--version").output == f"switchyard, version {__version__}\n"


def test_check_finds_what_would_keep_a_server_from_starting(switchyard, model_path):
    output = switchyard.told(0, "check", model_path)
    assert "✓ settings" in output and "LlamaForCausalLM" in output
    assert "answers end with </s> (2), <|im_end|> (4)" in output
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = f"127.0.0.1:{listener.getsockname()[1]}"
        output = switchyard.told(1, "check", "no/where", "--bind", taken, "--json")
    good = {finding["what"]: finding["is_good"] for finding in json.loads(output)}
    assert good == {"settings": True, "model": False, "address": False}
    assert "hf download no/where" in output and taken in output


def test_check_says_what_requests_would_be_told_of_a_broken_chat_template(
    switchyard, model_path, tmp_path
):
    path = shutil.copytree(model_path, tmp_path / "model")

    def check(status, template):
        (path / "chat_template.jinja").write_text(template)
        return switchyard.told(status, "check", path)

    output = check(1, "{% for message in messages %}{{ message }")
    with pytest.raises(engine.InvalidJob) as told:
        template = ChatTemplate(engine.ModelDir.read(str(path)))
        template.render(Conversation([{"role": "user", "content": "a"}]), str)
    assert f"✗ chat template: model: {told.value}\n" in output
    reason = "chat_template.jinja, fails on every conversation: not me\n"
    assert check(1, "{{ raise_exception('not me') }}").count(reason) == 1
    assert "✗" not in check(0, "{{ messages }}")


def test_check_reads_the_tokenizer(switchyard, model_path, tmp_path):
    path = shutil.copytree(model_path, tmp_path / "model")
    (path / "tokenizer.json").write_text("{")
    assert "tokenizer.json can't be read" in switchyard.told(1, "check", path)


def test_check_asks_torch_for_a_gpu_that_nvml_does_not_know(switchyard, monkeypatch, model_path):
    arguments = ("check", model_path, "--set", "device=cuda")
    assert "device 'cuda': torch finds no CUDA device" in switchyard.told(1, *arguments)
    monkeypatch.setattr(CHECK, "probe", lambda: {"sees": 1})
    assert switchyard(*arguments).exit_code == 0


def test_check_looks_for_loras(switchyard, monkeypatch, model_path, tmp_path):
    monkeypatch.setattr(CHECK, "probe", lambda: {"sees": 1})
    loras = f'loras=[{{"path": "{tmp_path}", "name": "terse"}}]'
    arguments = ("check", model_path, "--set", "device=cuda", "--set", loras)
    assert f"LoRA terse: {tmp_path} has no adapter_config" in switchyard.told(1, *arguments)
    for name in ("adapter_config.json", "adapter_model.bin"):
        (tmp_path / name).write_text("{}")
    assert switchyard(*arguments).exit_code == 0


def test_check_reads_the_keys_as_a_server_with_these_settings(switchyard, model_path, tmp_path):
    file = tmp_path / "keys.toml"
    entry = f'name = "ann"\nhash = "sha256:{"0" * 64}"\nbudget_tokens = 9\nbudget_period = "day"\n'
    file.write_text(f"[[keys]]\n{entry}")
    file.chmod(0o600)
    arguments = ("check", model_path, "--set", f"keys_file={file}")
    assert "budget_tokens needs the server's ledger setting" in switchyard(*arguments).output
    arguments += ("--set", f"ledger={tmp_path}/usage.db")
    assert f"✓ keys: 1 in {file}" in switchyard.told(0, *arguments)
    file.chmod(0o644)
    assert f"✗ keys: keys_file {file} is open to others" in switchyard.told(1, *arguments)


def test_check_tries_the_access_log_and_makes_none(switchyard, model_path, tmp_path):
    def told(path):
        done = switchyard("check", model_path, "--set", f"access_log={path}", "--json")
        return {one["what"]: one for one in json.loads(done.output)}["access log"]["is_good"]

    assert told("a.log") and not (tmp_path / "a.log").exists()
    (tmp_path / "a.log").write_text("")
    assert told("a.log")
    assert not told("no/where/a.log") and not told(tmp_path)


@pytest.mark.parametrize(("answer", "is_good"), [({"status": "live"}, True), ({}, False)])
def test_an_address_that_a_switchyard_has_is_no_fault(
    switchyard, answering, model_path, answer, is_good
):
    server = answering(body=json.dumps(answer).encode())
    bind = server.url.removeprefix("http://")
    output = switchyard.told(int(not is_good), "check", model_path, "--bind", bind)
    assert server.asked == [("GET", "/health/live", None)]
    assert (f"✓ address: {bind} is already used by a Switchyard" in output) == is_good


def test_settings_come_by_argument_and_by_another_file(switchyard, model_path, tmp_path):
    file = tmp_path / "other.toml"

    def check(text, *more):
        file.write_text(text)
        return switchyard("check", model_path, "--config", "other.toml", *more).output

    assert "max_batch_size" in check('max_batch_size = "many"\n')
    assert f"wrong in {file} is not a setting" in check("wrong = 1\n")
    assert "✓ model: other" in check('name = "other"\n')
    output = check('name = "other"\n', "--set", "name=given", "--set", "max_seq_len=256")
    assert "✓ model: given" in output and "256 tokens of context" in output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--set", "grace=long"], "--set grace: "),
        (["--bind", "nowhere"], "--bind: must be HOST:PORT"),
        ([""], "MODEL_DIR: is empty"),
        ([DEMO, "--set", 'model_aliases={"x": "no"}'], "--set model_aliases: 'x' stands for 'no'"),
        (["--set", "cache_tokens=1"], "--set cache_tokens: cache_tokens must be a multiple"),
    ],
)
def test_a_wrong_value_is_told_by_its_option(switchyard, monkeypatch, arguments, says):
    monkeypatch.setattr(os, "execv", None)  # serve ends before that
    for command in ("check", "serve"):
        output = switchyard.told(1, command, *arguments)
        assert says in output and "environment" not in output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["check", "a", "b"], "unexpected extra argument"),
        (["check", "--set", "nothing=1"], "where NAME is a setting"),
        (["check", "--set", "name"], "must be NAME=VALUE"),
        (["check", "--config", "nowhere.toml"], "there is no such file"),
        (["srve"], "No such command"),
        (["engine", "--set", 'at=["unix:a", "unix:b"]', "--set", "link=socket"], "one of unix:a, "),
        (["engine", "--set", 'at=["file:/a"]', "--set", "link=socket"], "unix:PATH or HOST:PORT"),
        (["engine", "--at", "dns:h:1"], "must be this engine's own address"),
        (["bench", "--streams", "1,x"], "must be numbers"),
        (["bench", "--tokens", "0"], "must be above 0"),
        (["bench", "--streams", "1,0"], "must be above 0"),
        (["models", "load", "a", "--set", "cache_tokens"], "must be NAME=VALUE"),
        (["models", "load", "a", "--set", "=3"], "must be NAME=VALUE"),
        (["models", "load", "a", "--set", "cache tokens=3"], "must be NAME=VALUE"),
        (["usage", "--group", "key"], "--group-by"),
        (["usage", "--url", "nowhere"], "must be http://HOST:PORT"),
        (["estimate", DEMO_EXL2, "--context", "100"], "--context"),
        (["estimate", DEMO_EXL2, "--jobs", "0"], "--jobs"),
        (["estimate", DEMO_EXL2, "--gpu", "0"], "--gpu"),
        (["estimate", DEMO_EXL2, "--gpu", "24TB"], "'24TB' must be a size such as 24 or 24GB"),
        (["estimate", DEMO_EXL2, "--bits", "1"], "--bits"),
        (["estimate", DEMO_EXL2, "--bits", "4bpw"], "must be a number from 2 to 16, such as 4.0"),
        (["estimate"], "MODEL_DIR"),
    ],
)
def test_wrong_usage_has_its_own_status(switchyard, arguments, says):
    assert says in switchyard.told(2, *arguments)


ANY = {"torch", "exllamav2"}
HEAVY = {"torch", "flask", "pydantic_settings", "switchyard.engine"}
ELSEWHERE = ("--url", "http://127.0.0.1:9")
OF_APP = HEAVY | {"pydantic", "switchyard.app"}


@pytest.mark.parametrize(
    ("arguments", "modules"),
    [
        (["check", DEMO, "--bind", "127.0.0.1:0"], ANY),
        (["estimate", DEMO_EXL2, "--gpu", "24"], ANY | {"numpy"}),
        (["--help"], OF_APP),
        (["status", *ELSEWHERE], OF_APP),
        (["usage", *ELSEWHERE], OF_APP),
        (["drain", *ELSEWHERE], OF_APP),
        (["keys", "--file", "keys.toml", "list"], HEAVY),
        (["keys", "--file", "keys.toml", "add", "ann"], HEAVY),
    ],
)
def test_quick_commands_import_nothing_heavy(tmp_path, arguments, modules):
    (tmp_path / "keys.toml").write_text("")
    (tmp_path / "keys.toml").chmod(0o600)
    run_code(f"""
import os, sys
from click.testing import CliRunner
from switchyard.cli import main
os.chdir({str(tmp_path)!r})
done = CliRunner().invoke(main, {arguments!r})
assert "can't be reached" in done.output or done.exit_code == 0, done.output
heavy = {modules!r} & sys.modules.keys()
assert not heavy, heavy
""")


@pytest.mark.parametrize("command", ["status", "usage", "drain", "bench", "models list"])
def test_each_command_reads_the_file_of_settings_that_is_given(
    switchyard, monkeypatch, tmp_path, command
):
    monkeypatch.delenv("SWITCHYARD_BIND")
    (tmp_path / "mine.toml").write_text('bind = "127.0.0.1:9"\n')
    first, *rest = command.split()
    for arguments in (("--config", "mine.toml", first), (first, "--config", "mine.toml")):
        assert "http://127.0.0.1:9 can't be reached" in switchyard(*arguments, *rest).output
        monkeypatch.delenv("SWITCHYARD_CONFIG")


@pytest.mark.parametrize("command", [["status"], ["usage"], ["bench"], ["models", "list"]])
def test_a_key_may_be_in_the_environment(switchyard, answering, monkeypatch, command):
    """Beside settings, of which it is none."""
    server = answering(body=b"{}")
    monkeypatch.setenv("SWITCHYARD_BIND", server.url.removeprefix("http://"))
    monkeypatch.setenv("SWITCHYARD_KEY", "mine")
    for more in ([], ["--key", "other"]):
        switchyard(command[0], *more, *command[1:])
    told = list(dict.fromkeys(server.told("Authorization")))
    assert told == ["Bearer mine", "Bearer other"]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_file_of_settings_that_is_not_there_is_wrong_usage(switchyard, name):
    told = switchyard.told(2, name, "--config", "no.toml")
    assert "--config no.toml: there is no such file" in told


def test_serve_becomes_gunicorn_with_the_settings(switchyard, monkeypatch, model_path):
    called = []
    monkeypatch.setattr(os, "execv", lambda *arguments: called.append(arguments))
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    switchyard("serve", model_path, "--bind", "127.0.0.1:1234", "--set", "max_batch_size=3")
    [(path, command)] = called
    assert path == sys.executable and command[1:] == ["-m", "switchyard"]
    assert os.environ["SWITCHYARD_MODEL"] == model_path
    assert os.environ["GLIBC_TUNABLES"] == "glibc.malloc.tcache_count=0"
    assert os.environ["SWITCHYARD_BIND"] == "127.0.0.1:1234"
    assert os.environ["SWITCHYARD_MAX_BATCH_SIZE"] == "3"
    monkeypatch.setenv("GLIBC_TUNABLES", "one.s.own=1")
    switchyard("serve", model_path)
    assert len(called) == 2 and os.environ["GLIBC_TUNABLES"] == "one.s.own=1"


def test_the_module_is_the_command_too():
    def run(*arguments):
        command = [sys.executable, "-m", "switchyard", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout

    assert "Commands:" in run("--help")
    assert run("-v") == f"switchyard (version {gunicorn.__version__})\n"  # gunicorn's arguments


def test_ctrl_c_while_gunicorn_is_imported_ends_it_without_a_word(tmp_path):
    (tmp_path / "gunicorn.py").write_text(
        "import signal\nprint('paused', flush=True)\nsignal.pause()\n"
    )
    command = [sys.executable, "-m", "switchyard"]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout.readline() == "paused\n"
        process.send_signal(signal.SIGINT)
        assert (process.stdout.read(), process.wait()) == ("", -signal.SIGINT)


def test_a_server_that_is_not_there_is_told_in_one_line(switchyard):
    told = switchyard.told(1, "bench", "--url", "http://127.0.0.1:9", "--streams", "2")
    [line] = told.splitlines()
    assert "http://127.0.0.1:9 can't be reached: " in line and "start it, or give --url" in line


def test_an_engine_is_chosen_by_its_name():
    configs = [engine.ModelConfig(path="x", name=name) for name in ("first", "second")]
    assert _chosen(configs, "second").name == "second"
    assert _chosen(configs[:1], None).name == "first"
    for few, name in ((configs, None), (configs, "third"), (configs[:1], "second")):
        with pytest.raises(click.UsageError, match="--name: must be one of first"):
            _chosen(few, name)


def test_what_is_no_answer_of_http_is_told(switchyard, answering):
    url = answering(None, b"nonsense\r\n").url
    assert f"switchyard: {url} can't be reached: " in switchyard.told(1, "drain", "--url", url)


@pytest.mark.parametrize(("bind", "host"), [("0.0.0.0", "127.0.0.1"), ("[::]", "[::1]")])
def test_a_server_at_all_addresses_is_asked_at_this_machines(monkeypatch, bind, host):
    monkeypatch.setenv("SWITCHYARD_BIND", f"{bind}:1234")
    assert url_of_settings() == f"http://{host}:1234"


@pytest.mark.parametrize("path", ["", "/", "/llm", "/llm/"])
def test_a_server_below_a_path_is_asked_there(switchyard, answering, path):
    server = answering()
    assert switchyard("drain", "--url", f"{server.url}{path}").exit_code == 0
    assert server.asked == [("POST", f"{path.rstrip('/')}/admin/drain", None)]


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (503, b'{"error": {"message": "later"}}', "503: later\n"),
        (404, b'{"error": "nothing here"}', "404: Not Found\n"),
        (404, b"[]", "404: Not Found\n"),
        (502, b"<html>", "502: Bad Gateway\n"),
        (403, b"", "403: Forbidden\n"),
        (401, b"", "401: Unauthorized (--key, or SWITCHYARD_KEY in the environment)\n"),
    ],
)
def test_whatever_a_server_refuses_with_is_told(switchyard, answering, status, body, says):
    url = answering(status, body).url
    assert switchyard.told(1, "drain", "--url", url) == f"switchyard: {url}: {says}"
