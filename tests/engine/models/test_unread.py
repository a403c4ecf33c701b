"""Models whose files can't be read: the others serve, and a load reads the files again."""

import dataclasses
import shutil

import pytest

from switchyard import engine
from switchyard.engine.models import lifecycle
from tests.engine.models.asked import closed


def no_directory(path):
    shutil.rmtree(path)


def no_config(path):
    (path / "config.json").unlink()


def broken_config(path):
    (path / "config.json").write_text('{"architectures": [')


def no_tokenizer(path):
    (path / "tokenizer.json").unlink()


def broken_tokenizer(path):
    (path / "tokenizer.json").write_text("{}")


WRONG = {
    no_directory: "does not exist",
    no_config: "has no config.json",
    broken_config: r"config\.json can't be read",
    no_tokenizer: "has no tokenizer.json",
    broken_tokenizer: r"tokenizer\.json can't be read",
}


@pytest.fixture
def path(model_path, tmp_path):
    return shutil.copytree(model_path, tmp_path / "model")


def at(model, path):
    return dataclasses.replace(model, config=dataclasses.replace(model.config, path=str(path)))


def mend(model_path, path):
    shutil.copytree(model_path, path, dirs_exist_ok=True)


@pytest.mark.parametrize("spoil", WRONG)
def test_an_unread_model_fails_alone_until_it_is_mended(served, model_path, path, spoil):
    spoil(path)
    table = served(clock=lambda: table.now)
    models = table.start(table.model("a", load="start"), at(table.model("b"), path))
    assert models.wait_until_loaded(20)
    told = models.status("b")
    assert told.state == "failed" and models.status("a").state == "ready"
    for _ in range(2):  # the second is told without another try
        with pytest.raises(engine.Dead, match=f"model b: .*{WRONG[spoil]}"):
            models.lease("b")
    mend(model_path, path)
    table.now += lifecycle.RETRY
    with models.lease("b") as found:
        assert found.model_dir.max_seq_len and found.tokenizer.encode("a", 10)
    assert table.loaded() == ["a", "b"] and models.status("b").error is None


def test_files_that_are_mended_before_a_request_are_read_by_it(served, model_path, path):
    no_config(path)
    table = served(clock=lambda: table.now)
    models = table.start(at(table.model("a"), path))
    assert str(models.status("a").error) == str(models.get("a").reason)
    mend(model_path, path)
    table.use("a")
    assert table.loaded() == ["a"]


def test_of_a_model_that_cant_be_read_only_the_settings_are_known(table, path):
    no_tokenizer(path)
    models = table.start(at(table.model("a", max_seq_len=512), path))
    found = models.get("a")
    assert (found.config.name, found.context, found.num_jobs, found.progress) == ("a", 512, 0, None)
    with pytest.raises(engine.Dead, match=r"model a: .* has no tokenizer\.json"):
        found.tokenizer.encode("a", 10)


def test_requests_are_told_why_an_operators_model_cant_be_read(table, model_path, path):
    no_directory(path)
    models = table.start(at(table.model("a", load="manual"), path))
    with pytest.raises(engine.Unloaded, match="does not exist"):
        models.lease("a")
    with pytest.raises(engine.ModelError, match="does not exist"):
        models.load("a").wait(20)
    assert models.status("a").state == "failed"
    mend(model_path, path)
    models.load("a").wait(20)
    table.use("a")


def test_one_that_is_loaded_with_the_server_ends_the_start(table, path):
    no_config(path)
    with pytest.raises(engine.ModelError, match="has no config"):
        engine.Models([table.model("a"), at(table.model("b", load="start"), path)])


def test_one_that_is_added_later_is_refused(table, path):
    no_config(path)
    models = table.start("a")
    with pytest.raises(engine.ModelError, match="has no config"):
        models.add(at(table.model("b"), path))
    assert models.names == ["a"]


def test_a_broken_model_stays_itself_if_its_swap_fails(table, model_path, path):
    no_config(path)
    models = table.start(at(table.model("a", max_pending=7), path))
    table.fail("a")
    with pytest.raises(engine.ModelError, match="no weights"):
        models.swap(table.model("a", max_pending=8)).wait(20)
    assert models.status("a").state == "failed" and "no weights" in str(models.status("a").error)
    assert models.get("a").config.max_pending == 7
    models.swap(table.model("a", max_pending=9)).wait(20)
    with models.lease("a") as found:
        assert found.config.max_pending == 9


def test_where_new_and_old_model_fail_both_are_told(served, model_path, path):
    table = served(size=15)
    models = table.start(at(table.model("a", max_pending=7), path))
    table.use("a")
    bad = closed(engine.ModelError("no weights"))
    table.scripts["a"] = [bad]
    load = models.swap(table.model("a", max_pending=8), "drain")
    no_directory(path)
    bad.opening.set()
    with pytest.raises(engine.ModelError, match=r"no weights; and the previous .* does not exist"):
        load.wait(20)
    assert models.status("a").state == "failed"
    mend(model_path, path)
    models.load("a").wait(20)
    assert models.get("a").config.max_pending == 7 and table.loaded() == ["a"]
