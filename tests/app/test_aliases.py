"""Names that clients may call the model by, beside its own: the setting model_aliases."""

import flask
import pytest

from switchyard import engine
from switchyard.app import Switchyard


@pytest.fixture
def make_models(model_path):
    """Engines of these names, none of which loads, and these aliases."""

    def make(names, aliases):
        config = [engine.ModelConfig(model_path, name) for name in names]
        return engine.Models([engine.open_engine(one) for one in config], aliases)

    return make


@pytest.mark.parametrize("name", ["gpt-4.1", "org/name"])
@pytest.mark.parametrize("headers", [{}, {"anthropic-version": "2023-06-01"}])
def test_aliases_are_found_and_not_listed(make_client, name, headers):
    client = make_client(model_aliases={name: "scripted"})
    rows = client.get("/v1/models", headers=headers).json["data"]
    assert [row["id"] for row in rows] == ["scripted"]
    assert client.get(f"/v1/models/{name}", headers=headers).json["id"] == "scripted"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("a", "a"),  # a served name, whatever aliases say
        ("gpt-4", "b"),  # to the letter
        ("gpt-4-mini", "c"),  # the longest
        ("gpt-5", "d"),
        ("gpt-", "d"),
        ("anything", "e"),
    ],
)
def test_the_nearest_alias_wins(make_models, name, found):
    aliases = {"*": "e", "gpt-*": "d", "gpt-4*": "c", "gpt-4": "b", "a": "b"}
    assert make_models("abcde", aliases).get(name).config.name == found


def test_of_some_models_the_aliases_stay(make_models):
    some = make_models("ab", {"x": "b", "y": "a"}).only(["b"])
    assert some.get("x").config.name == "b"
    with pytest.raises(engine.ModelNotFound):
        some.get("y")


@pytest.mark.parametrize("name", ["gpt-4o", "claude", "", "claude*"])
def test_a_name_that_only_begins_like_an_alias_is_unknown(make_models, name):
    with pytest.raises(engine.ModelNotFound):
        make_models("a", {"gpt-4": "a", "claude-*": "a"}).get(name)


def test_a_table_of_models_takes_no_alias_of_another(model_path):
    served = engine.Served(engine.ModelConfig(model_path, "a"))
    with pytest.raises(engine.ModelError, match="model_aliases: 'x' stands for 'b'"):
        engine.Models([served], {"x": "b"})


def test_an_extension_has_them_too(model_path):
    host = flask.Flask("host")
    switchyard = Switchyard(host, model=model_path, name="demo", model_aliases={"x": "demo"})
    assert switchyard.models.get("x").config.name == "demo"
