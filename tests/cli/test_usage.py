"""`switchyard usage`, of a server that listens."""

import json

import pytest

from switchyard.app.ledger.file import open_file
from tests.cli.conftest import Command
from tests.operations.conftest import KEYS
from tests.operations.ledgers import read
from tests.scripted import ScriptedBackend

ROWS = [
    ("2026-11-01", "ann", "demo", 2, 1, 20, 5, 2),
    ("2026-11-02", "ann", "demo", 10, 0, 1000, 0, 30),
    ("2026-11-02", "bob", "demo", 1, 0, 7, 0, 4),
]


@pytest.fixture
def url(make_counted, fill, serve):
    """The URL of a server whose ledger has three rows."""
    fill(*ROWS)
    return serve(make_counted(ScriptedBackend()).application)


@pytest.fixture
def usage(url, switchyard):
    return Command("usage", "--url", url, "--from", "2026-11-01", "--to", "2026-11-30")


def test_a_table_has_its_columns_below_each_other(usage):
    assert usage.told(0, "--key", KEYS["root"]).splitlines() == [
        "day         key  model  requests  failed  prompt_tokens  cached_tokens  completion_tokens",
        "2026-11-01  ann  demo          2       1             20              5                  2",
        "2026-11-02  ann  demo         10       0           1000              0                 30",
        "2026-11-02  bob  demo          1       0              7              0                  4",
        "all                           13       1           1027              5                 36",
    ]


def test_a_key_may_stand_in_the_environment_and_sees_its_own(usage):
    done = usage("--group-by", "key", "--json", env={"SWITCHYARD_KEY": KEYS["bob"]})
    assert [row["key"] for row in json.loads(done.output)["data"]] == ["bob"]
    done = usage("--to", "2026-11-01", env={"SWITCHYARD_KEY": KEYS["bob"]})
    assert (done.exit_code, done.output) == (0, "no usage\n")


def test_csv_is_as_the_server_says_it(usage):
    done = usage("--csv", "--group-by", "key", "--key", KEYS["root"])
    head, *lines = done.output.split()
    assert head.startswith("key,requests,") and lines == ["ann,12,1,1020,5,32", "bob,1,0,7,0,4"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--key", "wrong"], "401: the API key is missing or not valid"),
        (["--key", KEYS["root"], "--from", "today"], "400: from: must be a day such as"),
        (["--key", KEYS["prom"]], "403: "),
        (["--url", "http://127.0.0.1:9"], "can't be reached"),
    ],
)
def test_what_a_server_refuses_is_told_with_status_1(usage, arguments, says):
    assert says in usage.told(1, *arguments)


def test_a_backup_is_whole_while_the_server_writes(switchyard, url, path, tmp_path):
    target = tmp_path / "backup.db"
    target.write_text("older")
    (tmp_path / "switchyard.toml").write_text(f'ledger = "{path}"\n')
    done = switchyard("ledger", "backup", target)
    assert (done.exit_code, done.output) == (0, f"copied {path} to {target}\n")
    assert target.stat().st_mode & 0o777 == 0o600
    for one in (path, target):
        assert sum(n for (n,) in read(one, "SELECT completion_tokens FROM days")) == 36
    assert {one.name for one in tmp_path.glob("backup*")} == {"backup.db"}


def test_a_forgotten_key_leaves_no_byte_in_the_file_of_a_server_at_work(switchyard, usage, path):
    connection = open_file(str(path))
    rows = [(f"cmpl-{i}", key, "done") for i in range(2500) for key in ("ann", "bob")]
    rows = [(f"{key}-{name}", key, state) for name, key, state in rows]
    connection.executemany("INSERT INTO requests(id, key, state) VALUES (?, ?, ?)", rows)
    connection.close()
    before = usage("--group-by", "key", "--key", KEYS["root"])
    assert "ann" in before.output and b"ann" in path.read_bytes()
    command = ("ledger", "--file", path, "forget", "ann")
    done = switchyard(*command)
    assert done.output == "ann: deleted 2500 requests and 2 daily sums\n"
    assert not any(b"ann" in file.read_bytes() for file in path.parent.glob("usage.db*"))
    after = usage("--group-by", "key", "--csv", "--key", KEYS["root"]).output.split()
    assert after[1:] == ["bob,1,0,7,0,4"]
    assert read(path, "SELECT key, count(*) FROM requests GROUP BY key") == [("bob", 2500)]
    assert f"ledger {path} has no rows for ann" in switchyard.told(1, *command)


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        ((), 2, "no ledger: give --file, or set ledger in the settings"),
        (("--file", "no.db"), 1, "switchyard: ledger no.db: there is no such file"),
        (("--file", "notes.db"), 1, "ledger notes.db can't be copied to to.db: file is not a"),
        (("--file", "to.db"), 1, "ledger to.db can't be its own backup"),
    ],
)
def test_what_can_not_be_backed_up_is_told(switchyard, tmp_path, arguments, status, says):
    for name in ("notes.db", "to.db"):
        (tmp_path / name).write_text("no database" * 100)
    assert says in switchyard.told(status, "ledger", *arguments, "backup", "to.db")
    assert (tmp_path / "to.db").read_text().startswith("no database")
    assert not (tmp_path / "to.db-new").exists()
