"""What a file of keys may say, and what is said of one that can't be used."""

import base64
import hashlib
import os
from datetime import UTC, datetime, timedelta

import pytest

from switchyard.app.operations import keys
from switchyard.app.operations.keys import (
    KeysError,
    blocks,
    digest_of,
    parse_keys,
    read_keys,
    signature_of,
)
from tests.operations.conftest import KEYS, KeysFile, bearer, entry
from tests.scripted import ScriptedBackend

HASH = "sha256:" + "0" * 64
PAST = "2020-01-01T00:00:00Z"
URL = "/v1/completions"
BODY = {"prompt": "x", "max_tokens": 2}


def test_an_entry_is_read_with_all_that_it_may_have():
    text = entry(
        "ann",
        models=["demo", "llama-*"],
        rpm=60,
        tpm=1000,
        concurrency=4,
        max_tokens=4096,
        priority=2,
        max_priority=2,
        expires="2027-01-01T00:00:00Z",
        disabled=False,
        note="laptop",
    )
    [key] = parse_keys(text, 2).by_name.values()
    assert key.digest == hashlib.sha256(KEYS["ann"].encode()).hexdigest()
    assert (key.rpm, key.tpm, key.concurrency, key.max_tokens) == (60, 1000, 4, 4096)
    assert (key.priority, key.max_priority, key.role) == (2, 2, "user")
    assert key.expires == datetime(2027, 1, 1, tzinfo=UTC)
    assert key.is_valid(key.expires - timedelta(microseconds=1)) and not key.is_valid(key.expires)
    assert [key.may_use(name) for name in ("demo", "llama-3", "llama", "demo2")] == [
        *(True, True, False, False)
    ]


def test_what_is_not_given_is_no_limit():
    [key] = parse_keys(f'[[keys]]\nname = "a"\nhash = "{HASH}"\n', 0).by_name.values()
    assert {key.rpm, key.tpm, key.concurrency, key.max_tokens, key.expires} == {None}
    assert key.may_use("anything") and key.is_valid(datetime.now(UTC))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[keys]]\nname = 1", "entry 1: name: .*string"),
        (entry("Ann"), "Ann: name: .*pattern"),
        (entry("a" * 65), f"^{'a' * 64}: name: .*pattern"),
        *((entry(n), f"{n}: name: '{n}' is a reserved name") for n in ("host", "none", "other")),
        ('[[keys]]\nname = "a"', "a: hash: .*required"),
        (f'[[keys]]\nhash = "{HASH}"', "entry 1: name: .*required"),
        ('[[keys]]\nname = "a"\nhash = "sk-sy-secret"', "a: hash: .*pattern"),
        (f'[[keys]]\nname = "a"\nhash = "sha256:{"A" * 64}"', "a: hash: .*pattern"),
        (entry("ann", role="owner"), "ann: role: .*'admin'"),
        (entry("ann", rpm=0), "ann: rpm: .*greater than or equal to 1"),
        (entry("ann", rpm=True), "ann: rpm: .*integer"),
        (entry("ann", tpm="1000"), "ann: tpm: .*integer"),
        (entry("ann", rmp=1), "ann: rmp: is unknown"),
        (entry("ann", models="demo"), "ann: models: .*list"),
        (entry("ann", models=["a*b"]), r"ann: models: 'a\*b' must be a name"),
        (entry("ann", budget_tokens=5), "ann: budget_tokens and budget_period must be set"),
        (entry("ann", budget_period="day"), "ann: budget_tokens and budget_period must be set"),
        (entry("ann", budget_tokens=0, budget_period="day"), "ann: budget_tokens: .*greater than"),
        (entry("ann", budget_tokens=5, budget_period="week"), "ann: budget_period: .*'total'"),
        (entry("ann", budget_tokens=5, budget_period="day"), "ann: .* needs .* ledger setting"),
        (entry("ann", expires="2027-01-01T00:00:00"), "ann: expires: .*timezone"),
        (entry("ann", expires="2027-01-01"), "ann: expires: "),
        (entry("ann", max_priority=1), "ann: its priority, or max_priority, is above the server's"),
        (entry("ann", priority=1), "ann: its priority, or max_priority, is above"),
        (entry("ann", priority=0, max_priority=-1), "ann: priority 0 is above max_priority -1"),
        (entry("ann") + entry("ann"), "ann: two entries have this name"),
        (entry("ann") + entry("ann").replace("ann", "bob"), "bob and ann have the same hash"),
        ("[keys]\n", r"entries must be \[\[keys\]\] tables"),
        ("keys = 5\n", r"entries must be \[\[keys\]\] tables"),
        ("[other]\n", "other is unknown"),
        (entry("ann") + "[other]\n", "other is unknown"),
        (entry("ann") + "[[keys]]\nname =\n", "line 7"),
        ("[[keys]]\nnote = '''\n[[keys]]\n'''\n", "entry 1: name: .*required"),
    ],
)
def test_an_entry_that_cannot_be_honoured_is_named(text, message):
    with pytest.raises(KeysError, match=message) as raised:
        parse_keys(text, 0)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o601, 0o644])
def test_a_file_that_others_may_read_is_refused(tmp_path, mode):
    file = KeysFile(tmp_path / "keys").write(entry("ann"), mode=mode)
    with pytest.raises(KeysError, match=f"keys_file {file.path} is open to others"):
        read_keys(str(file.path), 0)
    file.path.chmod(0o640)  # a group may
    assert "ann" in read_keys(str(file.path), 0).by_name


@pytest.mark.parametrize("content", [None, b"\xff"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, content):
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
        path.chmod(0o600)
    with pytest.raises(KeysError, match=f"keys_file {path}: "):
        read_keys(str(path), 0)


def test_a_server_takes_no_empty_file(tmp_path):
    path = str(KeysFile(tmp_path / "keys").write("# nothing yet\n").path)
    with pytest.raises(KeysError, match=rf"{path}: it has no \[\[keys\]\]"):
        read_keys(path, 0)
    assert read_keys(path, 0, may_be_empty=True).by_name == {}


def test_entries_that_have_not_changed_are_the_same_again():
    before = parse_keys("# mine\n" + entry("ann") + entry("bob"), 0)
    after = parse_keys("# ours\n" + entry("bob") + entry("ann", rpm=1), 0, before=before)
    assert after.by_name["bob"] is before.by_name["bob"]
    assert after.by_name["ann"].rpm == 1


def test_strings_of_several_lines_hide_no_entry():
    text = entry("ann") + 'note = """\n[[keys]]\n"""\n' + entry("bob")
    table = parse_keys(text, 0)
    assert list(table.by_name) == ["ann", "bob"]
    assert list(parse_keys(text, 0, before=table).by_name) == ["ann", "bob"]
    assert "".join(blocks(text)) == text


# As an application has it


@pytest.mark.parametrize("key", ["of:three:parts", "schlüssel"])
def test_a_key_may_have_any_characters(make_keyed, keys_file, key):
    keys_file.write(entry("ann", hash=f"sha256:{digest_of(key.encode())}"))
    pair = base64.b64encode(f"any:{key}".encode()).decode()
    client = make_keyed(ScriptedBackend())
    for value in (f"Bearer {key.encode().decode('latin-1')}", f"Basic {pair}"):
        assert client.get("/v1/models", headers={"Authorization": value}).status_code == 200


def test_a_key_that_was_removed_begins_anew(make_keyed, keys_file, clock):
    client = make_keyed(ScriptedBackend())
    for status in (200, 200):
        keys_file.write(entry("ann", rpm=1), entry("bob"))
        clock.now += 1
        assert client.post(URL, json=BODY, headers=bearer("ann")).status_code == status
        keys_file.write(entry("bob"))
        clock.now += 1
        assert client.post(URL, json=BODY, headers=bearer("ann")).status_code == 401


@pytest.mark.parametrize(
    "left",
    ["", *(entry("ann", **m) for m in ({"hash": HASH}, {"expires": PAST}, {"disabled": True}))],
)
def test_a_long_connection_sees_a_file_that_has_changed(make_keyed, keys_file, clock, left):
    keyring = make_keyed(ScriptedBackend()).application.extensions["switchyard"].checks.keyring
    ann = keyring.find(KEYS["ann"].encode())
    keys_file.write(entry("bob"), left)
    assert keyring.find_again(ann) is ann
    clock.now += 1
    assert keyring.find_again(ann) is None


def test_the_file_stays_the_same_in_another_directory(make_keyed, tmp_path, clock, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = KeysFile(tmp_path / "own.toml").write(entry("ann")).path
    client = make_keyed(ScriptedBackend(), keys_file=path.name)
    monkeypatch.chdir("/")
    KeysFile(path).write(entry("bob"))
    clock.now += 1
    assert client.get("/v1/models", headers=bearer("bob")).status_code == 200


def test_a_file_of_the_greatest_length_is_read_and_a_longer_one_refused(tmp_path, monkeypatch):
    path = KeysFile(tmp_path / "keys").write(entry("ann")).path
    monkeypatch.setattr(keys, "MAX_BYTES", path.stat().st_size)
    assert "ann" in read_keys(str(path), 0).by_name
    monkeypatch.setattr(keys, "MAX_BYTES", path.stat().st_size - 1)
    with pytest.raises(KeysError, match="has more than"):
        read_keys(str(path), 0)


def test_a_change_within_a_tick_of_the_clock_is_noticed_by_length_or_file(tmp_path):
    path, other = tmp_path / "keys", tmp_path / "other"
    seen = set()
    for file, text in ((path, "a"), (path, "ab"), (other, "ab")):
        file.write_text(text)
        os.utime(file, ns=(0, 0))
        seen.add(signature_of(str(file)))
    assert len(seen) == 3
