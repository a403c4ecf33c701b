"""Settings from the file and the environment, and what is said of wrong ones."""

import pathlib
import re
import typing
from types import SimpleNamespace

import pytest

from switchyard import engine
from switchyard.app import SettingsError, read_settings
from switchyard.app.blueprint import open_services
from switchyard.app.config import Settings

ROOT = pathlib.Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_environment_wins_over_the_file(elsewhere, monkeypatch):
    (elsewhere / "switchyard.toml").write_text('max_pending = 7\nname = "from-file"\n')
    monkeypatch.setenv("SWITCHYARD_NAME", "from-environment")
    settings = read_settings()
    assert (settings.max_pending, settings.model_name) == (7, "from-environment")


def test_a_model_is_called_as_its_directory_unless_it_has_a_name():
    assert read_settings(model="/somewhere/Llama-3/").model_name == "Llama-3"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("MAX_PENDNG", "1", "is not a setting"),
        ("MAX_PENDING", "many", ".*integer"),
        ("DEVICE", "tpu", ".*'cuda'"),
        ("HEARTBEAT", "0", ".*greater than 0"),
        ("GRACE", "nan", ".*finite"),
        *(("BIND", bind, "must be HOST") for bind in ("127.0.0.1:99999", "127.0.0.1:http")),
        *(("BIND", bind, "must be HOST") for bind in ("8000", "")),
        ("MODEL_ALIASES", '{"a*b": "x"}', r"'a\*b' must be"),
        ("MODEL_ALIASES", '{"": "x"}', "'' must be a name"),
        ("MODEL", "", "is empty: name a directory"),
        ("MODEL", " ", "is empty"),
        ("CONFIG", "gone.toml", "there is no file 'gone.toml'"),
        ("PRESETS", "calm", "must be JSON"),
        ("LORAS", "a,b", "must be JSON"),
        ("LOG_LEVEL", "loud", ".*'DEBUG', 'INFO', 'WARNING'"),
        ("CACHE_MODE", "8bit", "cache_mode '8bit' must be one of float16, Q8, Q6, Q4 or"),
        ("CACHE_MODE", "Q8,9,1", "cache_mode '9,1' must be one of .* from 2 to 8, such as 5,4$"),
        ("CACHE_MODE", "8", "cache_mode '8' must be one of float16"),
        *(
            ("CORS_ORIGINS", origin, rf"'{origin}' must be \* or an origin")
            for origin in ("https://a.b/", "https://a.b/c", "a.b", "localhost:3000")
        ),
        ("TRUSTED_PROXIES", '["10.0.0.1/8"]', ".*host bits set"),
        ("TRUSTED_PROXIES", "nginx", ".*only networks or unix"),
    ],
)
def test_a_wrong_variable_is_named(monkeypatch, name, value, message):
    monkeypatch.setenv(f"SWITCHYARD_{name}", value)
    with pytest.raises(SettingsError, match=f"SWITCHYARD_{name} in the environment:? {message}"):
        read_settings()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("switchyard_grace", "x", r"switchyard_grace in the environment: .*number"),
        ("SWITCHYARD_LORAS", '[{"x": 1}]', r"SWITCHYARD_LORAS\.0\.path in the environment: "),
    ],
)
def test_a_wrong_variable_is_named_as_it_is_written(monkeypatch, name, value, message):
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=message):
        read_settings()


def test_a_table_is_json_in_the_environment_and_toml_in_the_file(elsewhere, monkeypatch):
    (elsewhere / "switchyard.toml").write_text('[model_aliases]\n"claude-*" = "demo"\n')
    assert read_settings().model_aliases == {"claude-*": "demo"}
    monkeypatch.setenv("SWITCHYARD_MODEL_ALIASES", '{"gpt-4.1": "demo"}')
    monkeypatch.setenv("SWITCHYARD_PRESETS", '{"calm": {"temperature": 0.2}}')
    assert read_settings().model_aliases["gpt-4.1"] == "demo"
    assert read_settings().presets == {"calm": {"temperature": 0.2}}


def test_the_longest_body_is_by_the_context_unless_it_is_set():
    settings = read_settings()
    assert settings.fitted(2048).max_body_bytes == 2**20
    assert settings.fitted(131_072).max_body_bytes == 2**22
    assert read_settings(max_body_bytes=5).fitted(131_072).max_body_bytes == 5


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("CORS_ORIGINS", "https://a.b, http://c:3000", ["https://a.b", "http://c:3000"]),
        ("CORS_ORIGINS", ' ["https://a.b", "http://c:3000"]', ["https://a.b", "http://c:3000"]),
        ("CORS_ORIGINS", "https://A.b", ["https://a.b"]),  # as browsers send it
        ("CORS_ORIGINS", "*", ["*"]),
        ("CORS_ORIGINS", "tauri://localhost", ["tauri://localhost"]),
        ("CORS_ORIGINS", "", []),
        ("ALLOWED_HOSTS", "a.example,b.example", ["a.example", "b.example"]),
        ("FORMATS", "openai,anthropic", ["openai", "anthropic"]),
        ("GPU_SPLIT", "20,24.5", [20.0, 24.5]),
        ("GPU_SPLIT", "[20, 24.5]", [20.0, 24.5]),
        ("CACHE_MODE", "float16, Q6", ["float16", "Q6"]),
        ("CACHE_MODE", "8,8, Q4, 5, 4", ["8,8", "Q4", "5,4"]),
        ("CACHE_TOKENS", "512", 512),
    ],
)
def test_lists_have_commas_or_are_json_in_the_environment(monkeypatch, name, value, expected):
    monkeypatch.setenv(f"SWITCHYARD_{name}", value)
    assert getattr(read_settings(), name.lower()) == expected


def test_cache_modes_are_a_list_in_the_file(elsewhere):
    (elsewhere / "switchyard.toml").write_text("cache_mode = ['Q8', 'Q4']\ncache_tokens = 'auto'")
    settings = read_settings()
    assert (settings.cache_mode, settings.cache_tokens) == (["Q8", "Q4"], "auto")
    with pytest.raises(SettingsError, match="cache_mode"):
        read_settings(cache_mode="Q5")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        *(("log_level", level, "DEBUG") for level in ("debug", "Debug", "DEBUG")),
        *(
            ("bind", bind, bind)
            for bind in ("0.0.0.0:0", "[::1]:80", "a.b:65535", "unix:/run/s", "fd://3")
        ),
    ],
)
def test_log_levels_have_any_case_and_what_gunicorn_can_bind_is_taken(name, value, expected):
    assert getattr(read_settings(**{name: value}), name) == expected


def test_a_wrong_setting_is_told_by_where_it_stands(elsewhere, monkeypatch):
    (elsewhere / "switchyard.toml").write_text("max_pending = 'x'")
    (elsewhere / "other.toml").write_text("max_pending = 'x'")

    def told(**overrides):
        with pytest.raises(SettingsError) as caught:
            read_settings(**overrides)
        assert caught.value.name == "max_pending" and "integer" in caught.value.reason
        return str(caught.value).partition(": ")[0]

    assert told() == "max_pending in switchyard.toml"
    monkeypatch.setenv("SWITCHYARD_CONFIG", "other.toml")
    assert told() == "max_pending in other.toml"
    monkeypatch.setenv("SWITCHYARD_MAX_PENDING", "y")
    assert told() == "SWITCHYARD_MAX_PENDING in the environment"
    assert told(max_pending="z") == "argument max_pending"
    with pytest.raises(SettingsError, match=r"^maxpending is not a setting"):
        read_settings(maxpending=1, max_pending=1)


def test_what_the_engine_cannot_honour_is_told_by_where_it_stands(elsewhere, monkeypatch):
    def told(**overrides):
        with pytest.raises(engine.ModelError) as caught:
            read_settings(**overrides).engine_config()
        where, _, message = str(caught.value).partition(": ")
        assert "cache_tokens must be a multiple of 256" in message
        return where

    (elsewhere / "switchyard.toml").write_text("cache_tokens = 1")
    assert told() == "cache_tokens in switchyard.toml"
    monkeypatch.setenv("SWITCHYARD_CACHE_TOKENS", "1")
    assert told() == "SWITCHYARD_CACHE_TOKENS in the environment"
    assert told(cache_tokens=1) == "argument cache_tokens"


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        ("max_pendng = 1", "max_pendng", "is not a setting of this server; did you mean max_pe"),
        ("idle_timeout = 900.0", "idle_timeout", r"is a setting of one model: .*\[\["),
        ("[engine]\nname = 'x'", "engine", "is not a setting of this server"),
        (
            *("[[models]]\nmodel = 'x'\nkeys_file = 'k'", r"models\.0\.keys_file"),
            "is not a setting of one model",
        ),
        (
            *("[[models]]\nmodel = 'x'\nidle_timout = 3", r"models\.0\.idle_timout"),
            r"is not a setting of a model; did you mean idle_timeout\?",
        ),
        (
            *("[[loras]]\nname = 'x'\npath = 'y'\nscale = 1", r"loras\.0\.scale"),
            ".*not a setting of loras",
        ),
        ("max_pending = 'x'", "max_pending", ".*integer"),
    ],
)
def test_a_wrong_file_is_named(elsewhere, content, name, message):
    (elsewhere / "switchyard.toml").write_text(content)
    with pytest.raises(SettingsError, match=rf"{name} in switchyard\.toml:? {message}"):
        read_settings()


def test_a_file_that_is_no_toml_is_named(elsewhere):
    (elsewhere / "switchyard.toml").write_text("max_pending")
    with pytest.raises(SettingsError, match=r"switchyard\.toml: "):
        read_settings()


def test_a_file_that_cannot_be_read_is_named(monkeypatch):
    monkeypatch.setenv("SWITCHYARD_CONFIG", "/proc/self/mem")
    with pytest.raises(SettingsError, match=r"^/proc/self/mem: .*Input/output error"):
        read_settings()


INF, NAN = float("inf"), float("nan")
# What one setting can't be, whatever the others are.
NEVER = {
    "cache_tokens": [1000, 0, -256],
    "cache_mode": [[], ["Q4", "Q4"]],
    "gpu_reserve": [0.1, INF],
    "loras": [[{"path": "a/x"}, {"path": "b/x"}]],
    "num_draft_tokens": [0, 8],
    "rope_alpha": [-1.0, INF],
    "rope_scale": [0.0, NAN],
    "unpacked_weights": [0.0],
    "gpu_split": [[0.0], [-1.0, 4.0], [INF]],
    "gpus": [[-1], [1, 1]],
    "max_chunk_size": [15],
    "max_gap_ms": [0.5, 10_001],
    "max_seq_len": [100],
    "max_batch_size": [0],
    "max_pending": [-1],
    "max_pending_tokens": [0],
    "fair_wait_factor": [0.5, NAN, INF],
    "default_repetition_penalty": [0.0],
    "default_frequency_penalty": [3.0],
    "default_max_tokens": [0],
    "hang_timeout": [0.0, 200.0],
    "silence_timeout": [0.0, INF],
}


@pytest.mark.parametrize(
    "wrong",
    [
        *({name: value} for name, values in NEVER.items() for value in values),
        {"tensor_parallel": True, "loras": [{"path": "a"}]},
        {"tensor_parallel": True, "draft_model": "draft"},
        {"ngram_draft": True, "draft_model": "draft"},
        {"gpus": [0], "device": "cpu"},
        {"gpus": [0], "link": "thread"},
        {"hang_timeout": 1.0, "hang_exit": INF},
    ],
    ids=str,
)
def test_what_the_engine_cannot_honour_is_named(wrong):
    name = next(iter(wrong))
    with pytest.raises(engine.ModelError, match=name) as raised:
        read_settings(**wrong).engine_config()
    assert raised.value.param == name


def test_loras_are_tables_and_named_after_their_directories(elsewhere):
    (elsewhere / "switchyard.toml").write_text(
        "[[loras]]\npath = 'adapters/terse'\n[[loras]]\npath = 'x'\nname = 'y'\nscaling = 0.5"
    )
    loras = read_settings().engine_config().loras
    assert loras == (engine.Lora("adapters/terse", "terse"), engine.Lora("x", "y", 0.5))
    with pytest.raises(SettingsError, match=r"argument loras\.0\.path: ") as caught:
        read_settings(loras=[{"name": "x"}])
    assert caught.value.name == "loras"


def test_there_are_more_threads_than_jobs():
    given = dict(max_batch_size=10, max_pending=20, max_websockets=4, reserve_threads=3)
    settings = read_settings(**given)
    assert settings.num_threads == 37
    assert settings.engine_config().max_jobs == 30


def test_the_engines_settings_are_of_its_own_types():
    types = typing.get_type_hints(engine.ModelConfig)
    otherwise = {"name", "at", "gpus", "cache_mode", "gpu_split", "loras"}  # or null; as in TOML
    settings = {name: field.annotation for name, field in Settings.model_fields.items()}
    assert types.keys() - settings.keys() == {"path"}
    shared = types.keys() & settings.keys()
    assert {name for name in shared if settings[name] != types[name]} == otherwise


ONE, OTHER = {"model": "/m/one"}, {"model": "/m/other", "aliases": ["chat"]}


def test_a_table_has_what_it_says_and_else_what_stands_outside():
    more = {"load": "demand", "drain": 7, "tool_format": "hermes"}
    models = [{**ONE, "max_batch_size": 4}, {**OTHER, **more}]
    settings = read_settings(models=models, max_batch_size=8, cache_tokens=512)
    one, other = settings.served()
    assert (one.config.name, one.config.max_batch_size, one.config.cache_tokens) == ("one", 4, 512)
    assert (other.config.max_batch_size, other.load, other.drain) == (8, "demand", 7)
    assert other.about.tool_format == "hermes"
    assert settings.aliases() == {"chat": "other"}
    assert settings.max_jobs == 4 + 8 + 2 * settings.max_pending


def test_without_tables_there_is_one_model():
    [served] = read_settings(model="/m/one", model_aliases={"chat": "one"}).served()
    assert (served.config.name, served.load, served.about) == ("one", "start", None)


@pytest.mark.parametrize(
    ("models", "more", "message"),
    [
        ([ONE, ONE], {}, "'one' is the name or alias of more than one model"),
        ([OTHER, {**ONE, "name": "chat"}], {}, "'chat' is the name or alias"),
        ([OTHER], {"model_aliases": {"chat": "other"}}, "'chat' is the name or alias"),
        ([OTHER], {"model_aliases": {"x": "none"}}, "model_aliases: 'x' stands for 'none'"),
        ([ONE], {"model": "/m/other"}, "can't be combined"),
        ([ONE], {"name": "other"}, "can't be combined"),
        ([ONE], {"default_model": "two"}, "'two' is not one of one"),
        ([ONE, OTHER], {"max_loaded": 1}, "max_loaded: must be at least 2"),
        ([ONE, {**OTHER, "load": "demand"}], {"max_loaded": 1}, "must be at least 2"),
        ([{"name": "x"}], {}, "models.0.model: Field required (in table 1 of [[models]])"),
        ([ONE, {**OTHER, "unload": 1}], {}, "did you mean load? (in table 2 of [[models]])"),
        (ONE, {}, "models: must be [[models]] tables, with two brackets on each side"),
        ([{**ONE, "aliases": ["g*t"]}], {}, "models.0.aliases: 'g*t' must be a name, with"),
        ([{**ONE, "aliases": [""]}], {}, "models.0.aliases: '' must be a name"),
        ([{**ONE, "bind": "x"}], {}, "models.0.bind"),
        ([{**ONE, "load": "never"}], {}, "models.0.load"),
        (
            [],
            {"model": "/m/one", "model_aliases": {"x": "y"}},
            "not a served model; available: one",
        ),
        ([], {"models_dir": "/nowhere"}, "models_dir: '/nowhere' is not a directory"),
        ([], {"model_aliases": {"g*t": "demo"}}, "model_aliases: 'g*t' must be a name"),
    ],
)
def test_tables_that_can_not_be_honoured_are_named(models, more, message):
    with pytest.raises(SettingsError, match=re.escape(message)):
        read_settings(**{"models": models} if models else {}, **more)


def test_a_fault_of_a_table_names_its_model():
    settings = read_settings(models=[ONE, {**OTHER, "cache_tokens": 100}])
    with pytest.raises(engine.ModelError, match="models: other: cache_tokens must be") as caught:
        settings.served()
    assert caught.value.param == "cache_tokens"


def test_each_replica_of_each_shared_engine_has_threads_for_its_jobs():
    shared = {"link": "socket", "at": ["unix:/a", "unix:/b"], "replicas": 2}
    settings = read_settings(**shared, max_batch_size=3, max_pending=1)
    assert settings.max_jobs == settings.engine_config().max_jobs == 2 * 2 * 3 + 1


@pytest.mark.parametrize(("given", "access"), [({}, "key"), ({"metrics": "open"}, "open")])
def test_with_keys_metrics_need_one_unless_they_are_set_open(given, access):
    assert read_settings(keys_file="keys.toml", **given).metrics == access


def test_a_fault_of_several_settings_is_told_once():
    with pytest.raises(SettingsError, match=r"^argument metrics: 'key' needs a keys_file$"):
        read_settings(metrics="key")


def test_what_the_engine_cannot_honour_of_a_default_stands_nowhere():
    with pytest.raises(engine.ModelError, match=r"^hang_timeout must be above 0, and hang_exit"):
        read_settings(hang_exit=0.5).engine_config()


def test_services_are_made_by_the_settings(tmp_path):
    settings = read_settings(ledger=str(tmp_path / "ledger"), ledger_days=7, max_pending=3)
    contexts = {name: SimpleNamespace(context=n) for name, n in (("a", 2048), ("b", 131_072))}
    models = SimpleNamespace(names=list(contexts), get=contexts.get)
    found = open_services(settings, models, None)
    assert found.settings.max_body_bytes == 32 * 131_072
    assert (found.ledger._days, found.ledger._has_keys) == (7, False)
    assert (found.gate._max_waiting, found.gate._max_busy) == (3, found.settings.max_jobs)
