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
        ("SWITCHYARD_MAX_PENDNG", "1", "SWITCHYARD_MAX_PENDNG in the environment is not a setting"),
        ("SWITCHYARD_MAX_PENDING", "many", "SWITCHYARD_MAX_PENDING in the environment: .*integer"),
        ("SWITCHYARD_DEVICE", "tpu", "SWITCHYARD_DEVICE in the environment: .*'cuda'"),
        ("SWITCHYARD_HEARTBEAT", "0", "SWITCHYARD_HEARTBEAT in the environment: .*greater than 0"),
        ("SWITCHYARD_GRACE", "nan", "SWITCHYARD_GRACE in the environment: .*finite"),
        ("SWITCHYARD_BIND", "127.0.0.1:99999", "SWITCHYARD_BIND in the environment: must be HOST"),
        ("SWITCHYARD_BIND", "127.0.0.1:http", "SWITCHYARD_BIND in the environment: must be HOST"),
        ("SWITCHYARD_BIND", "8000", "SWITCHYARD_BIND in the environment: must be HOST"),
        ("SWITCHYARD_BIND", "", "SWITCHYARD_BIND in the environment: must be HOST"),
        (
            "SWITCHYARD_MODEL_ALIASES",
            '{"a*b": "x"}',
            r"SWITCHYARD_MODEL_ALIASES in .*: 'a\*b' must be",
        ),
        ("SWITCHYARD_MODEL", "", "SWITCHYARD_MODEL in the environment: is empty: name a directory"),
        ("SWITCHYARD_MODEL", " ", "SWITCHYARD_MODEL in the environment: is empty"),
        ("SWITCHYARD_CONFIG", "gone.toml", "SWITCHYARD_CONFIG in .*: there is no file 'gone.toml'"),
        ("SWITCHYARD_PRESETS", "calm", "SWITCHYARD_PRESETS in the environment: must be JSON"),
        ("SWITCHYARD_LORAS", "a,b", "SWITCHYARD_LORAS in the environment: must be JSON"),
        ("SWITCHYARD_LORAS", '[{"x": 1}]', r"SWITCHYARD_LORAS\.0\.path in the environment: "),
        ("switchyard_grace", "x", "switchyard_grace in the environment: .*number"),
        ("SWITCHYARD_LOG_LEVEL", "loud", "SWITCHYARD_LOG_LEVEL in .*'DEBUG', 'INFO', 'WARNING'"),
        ("SWITCHYARD_CACHE_MODE", "8bit", "'8bit' must be one of float16, Q8, Q6, Q4 or"),
        ("SWITCHYARD_CACHE_MODE", "Q8,9,1", "'9,1' must be one of .* from 2 to 8, such as 5,4$"),
        ("SWITCHYARD_CACHE_MODE", "8", "'8' must be one of float16"),
        ("SWITCHYARD_CORS_ORIGINS", "https://a.b/", "'https://a.b/' must be SCHEME://HOST"),
        ("SWITCHYARD_CORS_ORIGINS", "https://a.b/c", "'https://a.b/c' must be SCHEME://HOST"),
        ("SWITCHYARD_CORS_ORIGINS", "a.b", "'a.b' must be SCHEME://HOST"),
        ("SWITCHYARD_CORS_ORIGINS", "localhost:3000", "'localhost:3000' must be SCHEME://HOST"),
        (
            "SWITCHYARD_MODEL_ALIASES",
            '{"": "x"}',
            "SWITCHYARD_MODEL_ALIASES in .*: '' must be a name",
        ),
        ("SWITCHYARD_TRUSTED_PROXIES", '["10.0.0.1/8"]', "TRUSTED_PROXIES in .*: .*host bits set"),
        ("SWITCHYARD_TRUSTED_PROXIES", "nginx", "TRUSTED_PROXIES in .*: .*be networks, or unix"),
    ],
)
def test_a_wrong_variable_is_named(monkeypatch, name, value, message):
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=message):
        read_settings()


def test_a_table_is_json_in_the_environment_and_toml_in_the_file(elsewhere, monkeypatch):
    (elsewhere / "switchyard.toml").write_text('[model_aliases]\n"claude-*" = "demo"\n')
    assert read_settings().model_aliases == {"claude-*": "demo"}
    monkeypatch.setenv("SWITCHYARD_MODEL_ALIASES", '{"gpt-4.1": "demo"}')
    monkeypatch.setenv("SWITCHYARD_PRESETS", '{"calm": {"temperature": 0.2}}')
    settings = read_settings()
    assert settings.model_aliases["gpt-4.1"] == "demo"
    assert settings.presets == {"calm": {"temperature": 0.2}}


def test_the_longest_body_is_by_the_context_unless_it_is_set():
    settings = read_settings()
    assert settings.fitted(2048).max_body_bytes == 2**20
    assert settings.fitted(131_072).max_body_bytes == 2**22
    assert read_settings(max_body_bytes=5).fitted(131_072).max_body_bytes == 5


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("CORS_ORIGINS", "https://a.b, http://c:3000", ["https://a.b", "http://c:3000"]),
        ("CORS_ORIGINS", '["https://a.b", "http://c:3000"]', ["https://a.b", "http://c:3000"]),
        ("CORS_ORIGINS", "https://A.b", ["https://a.b"]),  # as browsers send it
        ("CORS_ORIGINS", "*", ["*"]),
        ("CORS_ORIGINS", "tauri://localhost", ["tauri://localhost"]),
        ("CORS_ORIGINS", "", []),
        ("ALLOWED_HOSTS", "a.example,b.example", ["a.example", "b.example"]),
        ("FORMATS", "openai,anthropic", ["openai", "anthropic"]),
        ("GPU_SPLIT", "20,24.5", [20.0, 24.5]),
        ("GPU_SPLIT", "[20, 24.5]", [20.0, 24.5]),
    ],
)
def test_lists_have_commas_or_are_json_in_the_environment(monkeypatch, name, value, expected):
    monkeypatch.setenv(f"SWITCHYARD_{name}", value)
    assert getattr(read_settings(), name.lower()) == expected


@pytest.mark.parametrize("value", ["debug", "Debug", "DEBUG"])
def test_log_levels_have_any_case(value):
    assert read_settings(log_level=value).log_level == "DEBUG"


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
        assert "cache_tokens must be a multiple of 256" in str(caught.value)
        assert caught.value.param == "cache_tokens"
        return str(caught.value).partition(": ")[0]

    (elsewhere / "switchyard.toml").write_text("cache_tokens = 1")
    assert told() == "cache_tokens in switchyard.toml"
    monkeypatch.setenv("SWITCHYARD_CACHE_TOKENS", "1")
    assert told() == "SWITCHYARD_CACHE_TOKENS in the environment"
    assert told(cache_tokens=1) == "argument cache_tokens"


@pytest.mark.parametrize("bind", ["0.0.0.0:0", "[::1]:80", "a.b:65535", "unix:/run/s", "fd://3"])
def test_what_gunicorn_can_bind_is_taken(bind):
    assert read_settings(bind=bind).bind == bind


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("max_pendng = 1", r"max_pendng in switchyard\.toml is not a setting of this server"),
        ("max_pendng = 1", r"did you mean max_pending\?"),
        (
            "idle_timeout = 900.0",
            r"idle_timeout in switchyard\.toml is a setting of one model: .*\[\[",
        ),
        ("[engine]\nname = 'x'", r"engine in switchyard\.toml is not a setting of this server"),
        (
            "[[models]]\nmodel = 'x'\nkeys_file = 'k'",
            r"models\.0\.keys_file in switchyard\.toml is not a setting of one model",
        ),
        (
            "[[models]]\nmodel = 'x'\nidle_timout = 3",
            r"models\.0\.idle_timout .* is not a setting of a model; did you mean idle_timeout\?",
        ),
        (
            "[[loras]]\nname = 'x'\npath = 'y'\nscale = 1",
            r"loras\.0\.scale .* not a setting of loras",
        ),
        ("max_pending = 'x'", r"max_pending in switchyard\.toml: .*integer"),
        ("max_pending", r"switchyard\.toml: "),
    ],
)
def test_a_wrong_file_is_named(elsewhere, content, message):
    (elsewhere / "switchyard.toml").write_text(content)
    with pytest.raises(SettingsError, match=message):
        read_settings()


def test_a_file_that_cannot_be_read_is_named(monkeypatch):
    monkeypatch.setenv("SWITCHYARD_CONFIG", "/proc/self/mem")
    with pytest.raises(SettingsError, match=r"^/proc/self/mem: .*Input/output error"):
        read_settings()


@pytest.mark.parametrize(
    "wrong",
    [
        {"cache_tokens": 1000},
        {"cache_tokens": 0},
        {"cache_tokens": -256},
        {"cache_mode": []},
        {"cache_mode": ["Q4", "Q4"]},
        {"gpu_reserve": 0.1},
        {"loras": [{"path": "a/x"}, {"path": "b/x"}]},
        {"tensor_parallel": True, "loras": [{"path": "a"}]},
        {"tensor_parallel": True, "draft_model": "draft"},
        {"num_draft_tokens": 0},
        {"num_draft_tokens": 8},
        {"ngram_draft": True, "draft_model": "draft"},
        {"rope_alpha": -1.0},
        {"rope_alpha": float("inf")},
        {"rope_scale": 0.0},
        {"rope_scale": float("nan")},
        {"gpu_reserve": float("inf")},
        {"unpacked_weights": 0.0},
        {"gpu_split": [0.0]},
        {"gpu_split": [-1.0, 4.0]},
        {"gpu_split": [float("inf")]},
        {"gpus": [-1]},
        {"gpus": [1, 1]},
        {"gpus": [0], "device": "cpu"},
        {"gpus": [0], "link": "thread"},
        {"max_chunk_size": 15},
        {"max_gap_ms": 0.5},
        {"max_gap_ms": 10_001},
        {"max_seq_len": 100},
        {"max_batch_size": 0},
        {"max_pending": -1},
        {"max_pending_tokens": 0},
        {"fair_wait_factor": 0.5},
        {"default_repetition_penalty": 0.0},
        {"default_frequency_penalty": 3.0},
        {"hang_timeout": 0.0},
        {"hang_timeout": 200.0},
        {"hang_timeout": 1.0, "hang_exit": float("inf")},
        {"silence_timeout": 0.0},
        {"silence_timeout": float("inf")},
        {"fair_wait_factor": float("nan")},
        {"fair_wait_factor": float("inf")},
        {"default_max_tokens": 0},
    ],
    ids=str,
)
def test_what_the_engine_cannot_honour_is_named(wrong):
    name = next(iter(wrong))
    with pytest.raises(engine.ModelError, match=name) as raised:
        read_settings(**wrong).engine_config()
    assert raised.value.param == name


def test_cache_modes_are_a_list_or_have_commas_between_them(monkeypatch, elsewhere):
    (elsewhere / "switchyard.toml").write_text("cache_mode = ['Q8', 'Q4']\ncache_tokens = 'auto'")
    settings = read_settings()
    assert (settings.cache_mode, settings.cache_tokens) == (["Q8", "Q4"], "auto")
    monkeypatch.setenv("SWITCHYARD_CACHE_MODE", "float16, Q6")
    monkeypatch.setenv("SWITCHYARD_CORS_ORIGINS", ' ["https://a.example"]')
    monkeypatch.setenv("SWITCHYARD_CACHE_TOKENS", "512")
    settings = read_settings()
    assert (settings.cache_mode, settings.cache_tokens) == (["float16", "Q6"], 512)
    assert settings.cors_origins == ["https://a.example"]
    with pytest.raises(SettingsError, match="cache_mode"):
        read_settings(cache_mode="Q5")
    monkeypatch.setenv("SWITCHYARD_CACHE_MODE", "8,8, Q4, 5, 4")
    assert read_settings().cache_mode == ["8,8", "Q4", "5,4"]


def test_loras_are_tables_and_named_after_their_directories(elsewhere):
    (elsewhere / "switchyard.toml").write_text(
        "[[loras]]\npath = 'adapters/terse'\n[[loras]]\npath = 'x'\nname = 'y'\nscaling = 0.5"
    )
    loras = read_settings().engine_config().loras
    assert loras == (engine.Lora("adapters/terse", "terse"), engine.Lora("x", "y", 0.5))
    with pytest.raises(SettingsError, match=r"loras\.0\.scale"):
        read_settings(loras=[{"path": "x", "scale": 1.0}])
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
    models = [{**ONE, "max_batch_size": 4}, {**OTHER, "load": "demand", "drain": 7}]
    models[1]["tool_format"] = "hermes"
    settings = read_settings(models=models, max_batch_size=8, cache_tokens=512)
    one, other = settings.served()
    assert (one.config.name, one.config.max_batch_size, one.config.cache_tokens) == ("one", 4, 512)
    assert (other.config.max_batch_size, other.load, other.about.tool_format, other.drain) == (
        *(8, "demand", "hermes", 7),
    )
    assert settings.aliases() == {"chat": "other"}
    assert settings.max_jobs == 4 + 8 + 2 * settings.max_pending


def test_without_tables_there_is_one_model():
    [served] = read_settings(model="/m/one", model_aliases={"chat": "one"}).served()
    assert (served.config.name, served.load, served.about) == ("one", "start", None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"models": [ONE, ONE]}, "'one' is the name or alias of more than one model"),
        ({"models": [OTHER, {**ONE, "name": "chat"}]}, "'chat' is the name or alias"),
        ({"models": [OTHER], "model_aliases": {"chat": "other"}}, "'chat' is the name or alias"),
        (
            {"models": [OTHER], "model_aliases": {"x": "none"}},
            "model_aliases: 'x' stands for 'none'",
        ),
        (
            {"model": "/m/one", "model_aliases": {"x": "other"}},
            "not a served model; there is: one",
        ),
        ({"models": [ONE], "model": "/m/other"}, "can't be combined"),
        ({"models": [ONE], "name": "other"}, "can't be combined"),
        ({"models": [ONE], "default_model": "two"}, "'two' is not one of one"),
        ({"models": [ONE, OTHER], "max_loaded": 1}, "max_loaded: 2 models stay"),
        ({"models": [ONE, {**OTHER, "load": "demand"}], "max_loaded": 1}, "must be at least 2"),
        ({"models_dir": "/nowhere"}, "models_dir: '/nowhere' is not a directory"),
        ({"models": [{"name": "x"}]}, "models.0.model: Field required (in table 1 of [[models]])"),
        (
            {"models": [ONE, {**OTHER, "unload": 1}]},
            "did you mean load? (in table 2 of [[models]])",
        ),
        ({"models": ONE}, "models: must be [[models]] tables, with two brackets on each side"),
        ({"models": [{**ONE, "aliases": ["g*t"]}]}, "models.0.aliases: 'g*t' must be a name, with"),
        ({"models": [{**ONE, "aliases": [""]}]}, "models.0.aliases: '' must be a name"),
        ({"model_aliases": {"g*t": "demo"}}, "model_aliases: 'g*t' must be a name"),
        ({"models": [{**ONE, "bind": "x"}]}, "models.0.bind"),
        ({"models": [{**ONE, "load": "never"}]}, "models.0.load"),
    ],
)
def test_tables_that_can_not_be_honoured_are_named(given, message):
    with pytest.raises(SettingsError, match=re.escape(message)):
        read_settings(**given)


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
    given = dict(ledger=str(tmp_path / "ledger"), ledger_days=7, max_pending=3)
    contexts = {"short": 2048, "long": 131_072}
    models = SimpleNamespace(
        names=list(contexts), get=lambda name: SimpleNamespace(context=contexts[name])
    )
    found = open_services(read_settings(**given), models, None)
    assert found.settings.max_body_bytes == 32 * 131_072
    assert (found.ledger._days, found.ledger._has_keys) == (7, False)
    assert (found.gate._max_waiting, found.gate._max_busy) == (3, found.settings.max_jobs)
