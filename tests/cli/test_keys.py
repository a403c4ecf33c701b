"""`switchyard keys`, on real files."""

import contextlib
import errno
import hashlib
import json
import os
import stat
import threading

import pytest

from switchyard.app.operations.keys import read_keys
from switchyard.cli.keys_file import Failed, block, edit
from tests.cli.conftest import Command


@pytest.fixture
def path(tmp_path):
    return tmp_path / "keys.toml"


@pytest.fixture
def keys(switchyard, path):
    return Command("keys", "--file", path)


def table(path):
    return read_keys(str(path), 0).by_name


def hashed(key):
    return hashlib.sha256(key.encode()).hexdigest()


@contextlib.contextmanager
def left_as_it_is(path):
    text = path.read_text()
    yield
    assert path.read_text() == text and os.listdir(path.parent) == [path.name]


def test_a_key_is_made_shown_once_and_kept_as_a_hash(keys, path):
    done = keys("add", "ann", "--rpm", "60", "--tpm", "1000", "--model", "demo", "--note", 'a "b"')
    assert done.exit_code == 0, done.output
    key = done.stdout.removesuffix("\n")  # for a pipe
    assert key.startswith("sk-sy-") and path.read_text().startswith("# Switchyard's API keys")
    assert len(key) == len("sk-sy-") + 43
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    [entry] = table(path).values()
    told = (entry.digest, entry.rpm, entry.tpm, entry.models, entry.note)
    assert told == (hashed(key), 60, 1000, ["demo"], 'a "b"')
    assert key not in path.read_text()
    assert os.listdir(path.parent) == [path.name]


def test_help_needs_no_file(switchyard):
    assert "--rpm" in switchyard.told(0, "keys", "add", "--help")


def test_another_is_appended_and_all_else_stays(keys, path):
    keys("add", "ann")
    text = path.read_text() + "# mine\n"
    path.write_text(text)
    assert keys("add", "bob", "--role", "admin", "--expires", "2027-01-01T00:00:00Z").exit_code == 0
    assert path.read_text().startswith(text)
    assert (table(path)["bob"].role, table(path)["bob"].expires.year) == ("admin", 2027)


def test_a_key_may_be_given_and_again_in_a_rotation(keys, path):
    for command in (["add"], ["rotate"], ["rotate", "--json"]):
        given = f"my-own-key-of-some-length-{len(command)}"
        more = ("--rpm", "5") if command == ["add"] else ()
        done = keys(*command, "ann", *more, "--stdin", input=given + "\n")
        assert done.exit_code == 0 and given not in done.output
        assert (table(path)["ann"].digest, table(path)["ann"].rpm) == (hashed(given), 5)


def test_a_key_is_rotated_with_its_limits(keys, path):
    keys("add", "ann", "--rpm", "5")
    keys("add", "bob")
    before = table(path)
    told = json.loads(keys("rotate", "ann", "--json").output)
    after = table(path)
    assert after["ann"].digest == hashed(told["key"]) != before["ann"].digest
    assert (after["ann"].rpm, after["bob"]) == (5, before["bob"])


def test_a_key_is_removed_with_its_own_lines_alone(keys, path):
    for name in ("ann", "bob", "eve"):
        keys("add", name)
    assert keys("remove", "bob").exit_code == 0
    assert list(table(path)) == ["ann", "eve"]
    assert path.read_text().count("[[keys]]") == 2


def test_the_list_shows_limits_and_no_hash(keys, path):
    keys("add", "ann", "--rpm", "5")
    keys("add", "old")
    path.write_text(path.read_text() + "expires = 2020-01-01T00:00:00Z\n")
    shown = keys("list").output
    assert "ann  user  rpm=5" in shown and "(not valid)" in shown
    assert table(path)["ann"].digest[:8] not in shown
    rows = json.loads(keys("list", "--json").output)
    assert [row["name"] for row in rows] == ["ann", "old"]
    assert "hash" not in rows[0] and rows[0]["rpm"] == 5


def test_check_says_whether_a_server_could_read_it(keys, path, monkeypatch):
    keys("add", "ann", "--budget-tokens", "5", "--budget-period", "day")
    assert "needs the server's ledger setting" in keys.told(1, "check")
    monkeypatch.setenv("SWITCHYARD_LEDGER", "usage.db")
    assert keys("check").exit_code == 0
    path.chmod(0o644)
    assert "chmod o=" in json.loads(keys.told(1, "check", "--json"))["message"]


@pytest.mark.parametrize(
    "given", ["a-short-one", "with a blank 0123456789", "schlüssel-0123456789ab"]
)
def test_a_key_that_would_be_no_key_is_refused(keys, path, given):
    done = keys("add", "ann", "--stdin", input=f"{given}\n")
    assert done.exit_code == 2 and "at least 20 printable ASCII" in done.output
    assert not path.exists()


def test_a_full_disk_leaves_the_file_and_nothing_beside_it(keys, path, monkeypatch):
    def fail(file):
        raise OSError(errno.ENOSPC, "No space left on device")

    keys("add", "ann")
    monkeypatch.setattr(os, "fsync", fail)
    with left_as_it_is(path):
        assert f"switchyard: {path}: No space left" in keys.told(1, "add", "bob")


def test_a_directory_that_is_not_there_is_told(tmp_path, switchyard):
    done = switchyard("keys", "--file", tmp_path / "no" / "keys", "add", "ann")
    told = f"switchyard: {tmp_path / 'no'}: No such file or directory\n"
    assert (done.exit_code, done.stderr) == (1, told)


def test_a_change_of_another_entry_is_no_safe_edit(keys, path):
    keys("add", "ann")
    keys("add", "bob")
    with left_as_it_is(path), pytest.raises(Failed, match="can't be edited safely"):
        edit(str(path), lambda text: text.replace("bob", "eve"), expected={"ann"})


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["add", "Ann"], 1, "Ann: name"),
        (["add", "ann"], 1, "already has a key named ann: edit"),
        (["add", "eve", "--rpm", "0"], 1, "eve: rpm"),
        (["add", "eve", "--expires", "tomorrow"], 2, "must be a time such as 2027-01-01T00:00:00Z"),
        (["add", "eve", "--expires", "2030-01-01T00:00:00"], 2, "must be a time such as 2027"),
        (["add", "eve", "--expires", "2020-01-01T00:00:00Z"], 2, "is in the past"),
        (["add", "eve", "--priority", "5"], 1, "above the server's max_priority setting, 0"),
        (["remove", "ann"], 1, "this is the file's only key"),
        (["add", "eve", "--role", "owner"], 2, "--role"),
        (["add", "eve", "--stdin"], 2, "at least 20 printable"),
        (["remove", "eve"], 1, "no key named eve"),
        (["rotate", "eve"], 1, "no key named eve"),
    ],
)
def test_what_cannot_be_done_changes_nothing(keys, path, arguments, status, says):
    keys("add", "ann")
    with left_as_it_is(path):
        assert says in keys.told(status, *arguments, input="short\n")


def test_priorities_are_the_servers(keys, path, monkeypatch):
    """In the whole file: a key above them can only be removed."""
    keys("add", "ann")
    monkeypatch.setenv("SWITCHYARD_MAX_PRIORITY", "5")
    assert keys("add", "vip", "--priority", "5").exit_code == 0
    monkeypatch.setenv("SWITCHYARD_MAX_PRIORITY", "4")
    for arguments in (["rotate", "ann"], ["add", "bob"]):
        assert "vip: its priority" in keys.told(1, *arguments)
    assert keys("remove", "vip").exit_code == 0


def test_a_file_that_cannot_be_edited_safely_is_left(keys, path):
    keys("add", "ann")
    keys("add", "bob")
    path.write_text(path.read_text() + 'note = """\nlong\n"""\n')
    with left_as_it_is(path):
        assert "can't be edited" in keys.told(1, "remove", "ann")


def test_links_and_the_rights_of_a_group_stay(keys, path, tmp_path):
    target = tmp_path / "secret" / "keys.toml"
    target.parent.mkdir()
    path.symlink_to(target)
    keys("add", "ann")
    target.chmod(0o640)
    inode = target.stat().st_ino
    keys("add", "bob")
    assert path.is_symlink()
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert target.stat().st_ino != inode  # another file has taken its place
    assert list(table(target)) == ["ann", "bob"]


def test_the_file_stays_its_owners_whoever_edits_it(keys, path, monkeypatch):
    """Such as root, behind whose command the server must read it."""
    keys("add", "ann")
    owner = path.stat().st_uid, path.stat().st_gid
    given = []
    monkeypatch.setattr(os, "fchown", lambda _, *owner: given.append(owner))
    keys("add", "bob")
    assert given == [owner]


def test_two_commands_at_once_lose_nothing(keys, path):
    keys("add", "ann")

    # Not by CliRunner, whose calls take the standard streams of the process from each other.
    def add(i):
        entry = block({"name": f"key{i}", "hash": f"sha256:{hashed(str(i))}"})
        edit(str(path), lambda text: f"{text}\n{entry}", expected={f"key{i}"})

    threads = [threading.Thread(target=add, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(table(path)) == 9


def test_the_file_is_the_settings_one_unless_it_is_given(switchyard, path, monkeypatch):
    monkeypatch.setenv("SWITCHYARD_KEYS_FILE", str(path))
    assert switchyard("keys", "add", "ann").exit_code == 0
    assert list(table(path)) == ["ann"]
    monkeypatch.delenv("SWITCHYARD_KEYS_FILE")
    assert "no key file: give --file, or set keys_file" in switchyard.told(2, "keys", "list")
