"""Which wire formats an application has."""

import sys

import pytest

from switchyard import engine
from switchyard.app import Settings, SettingsError, create_app, read_settings
from tests.conftest import ROOT, run_code

ANTHROPICS = {"anthropic-version": "2023-06-01"}


@pytest.fixture
def make_client(model_path):
    """Makes a client of an application whose model doesn't load."""

    def make(formats=None, **more):
        named = {} if formats is None else {"formats": formats}
        settings = Settings(model=model_path, name="idle", **named, **more)
        models = engine.Models([engine.open_engine(settings.engine_config())])
        return create_app(settings, models).test_client()

    return make


def paths(client):
    return {rule.rule for rule in client.application.url_map.iter_rules()}


def test_a_format_that_is_not_named_is_not_served(make_client):
    served = paths(make_client(["plain", "llamacpp"]))
    assert {"/generate", "/completion", "/health/live", "/v1/models"} <= served
    assert not served & {"/v1/completions", "/v1/messages", "/v1/stream", "/tokenize"}
    assert served < paths(make_client())


def test_errors_and_models_are_in_the_words_of_formats_that_are_served(make_client):
    with_all, without = make_client(), make_client(["openai"])
    assert with_all.get("/nothing", headers=ANTHROPICS).json["type"] == "error"
    assert set(without.get("/nothing", headers=ANTHROPICS).json) == {"error"}
    assert "has_more" in with_all.get("/v1/models", headers=ANTHROPICS).json
    assert without.get("/v1/models", headers=ANTHROPICS).json["object"] == "list"
    documents = [client.get("/openapi.json").text for client in (with_all, without)]
    assert ["AnthropicErrorBody" in document for document in documents] == [True, False]


def test_a_path_that_only_begins_as_messages_is_not_anthropics(make_client):
    client = make_client()
    assert client.get("/v1/messages/x").json["type"] == "error"
    assert set(client.get("/v1/messages-x").json) == {"error"}


def test_a_format_that_is_not_named_is_not_imported():
    run_code(
        "import sys\n"
        "from switchyard.app.formats.format import load\n"
        "assert [format.name for format in load(['plain', 'plain'])] == ['plain']\n"
        "names = ['switchyard.app.formats.websocket', 'flask_sock']\n"
        "assert not [name for name in names if name in sys.modules]"
    )


def test_a_format_whose_package_is_missing_is_left_out_and_told(make_client, monkeypatch, caplog):
    caplog.set_level("INFO")
    for name in [n for n in sys.modules if n.startswith("switchyard.app.formats.websocket")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flask_sock", None)
    served = paths(make_client())
    assert "/v1/stream" not in served and "/v1/completions" in served
    [line] = [record.getMessage() for record in caplog.records]
    assert "websocket" in line and "flask_sock" in line and "switchyard[websocket]" in line


def test_a_format_whose_own_code_is_missing_is_an_error(make_client, monkeypatch):
    for name in [n for n in sys.modules if n.startswith("switchyard.app.formats.websocket")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "switchyard.app.formats.websocket.session", None)
    with pytest.raises(ModuleNotFoundError, match="session"):
        make_client()


def test_the_page_of_the_documentation_is_left_out_with_a_line(make_client, monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr("switchyard.app.openapi.page.ASSETS", "")
    client = make_client()
    for path in ("/docs/", "/docs/__init__.py"):  # which is in the application's folder
        assert client.get(path).status_code == 404
    assert client.get("/openapi.json").status_code == 200
    [line] = [record.getMessage() for record in caplog.records]
    assert "switchyard[docs]" in line


def test_an_unknown_format_is_refused_by_name():
    with pytest.raises(SettingsError, match="formats"):
        read_settings(formats=["openai", "gopher"])


def test_every_folder_of_a_format_is_named():
    folders = {path.parent.name for path in (ROOT / "app" / "formats").glob("*/routes.py")}
    assert folders == set(Settings.model_fields["formats"].default)
