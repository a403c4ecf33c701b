"""A key is changed while servers and engines go on."""

import itertools
import os

import pytest

from switchyard.engine.links.hosts.key import KeyFile, keys_in
from switchyard.engine.links.hosts.knock import look
from switchyard.engine.links.hosts.peer import Stranger
from tests.engine.hosts.house import FINGERPRINT
from tests.scripted import ScriptedBackend

OLD, NEW = b"o" * 64, b"n" * 64


def write(path, *keys):
    path.write_bytes(b"\n".join(keys) + b"\n")
    path.chmod(0o600)


def test_both_keys_of_a_file_are_accepted_in_each_step_of_a_change(house, tmp_path):
    """The files of servers and engines are never changed at once."""
    engines, servers = tmp_path / "engines", tmp_path / "servers"
    steps = [(OLD,), (NEW, OLD), (NEW,)]
    write(engines, OLD)
    shared = house(key=KeyFile(str(engines)))
    shared.open(ScriptedBackend())
    for (i, ours), (k, theirs) in itertools.product(enumerate(steps), repeat=2):
        write(engines, *ours)
        write(servers, *theirs)
        key = KeyFile(str(servers))
        if abs(i - k) < 2:
            assert look(shared.at, key(), FINGERPRINT).pid == os.getpid()
        else:
            with pytest.raises(Stranger, match="a different key"):
                look(shared.at, key(), FINGERPRINT)


def test_a_file_that_can_not_be_read_any_more_changes_nothing(tmp_path, caplog):
    path = tmp_path / "key"
    write(path, OLD)
    key = KeyFile(str(path))
    path.chmod(0o644)
    assert [key(), key()] == [OLD, OLD] and caplog.text.count("open to others") == 1
    write(path, NEW)
    assert key() == NEW


@pytest.mark.parametrize(
    ("data", "number"),
    [
        (OLD, 1),
        (OLD + b"\r\n" + NEW, 2),
        (OLD + b"\n" + b"short", 1),
        (b"\xff" * 40 + b"\n" + b"\xfe" * 40, 1),  # bytes drawn at random
        (b"\n".join([OLD] * 3), 1),
        (b"", 1),
    ],
)
def test_two_keys_are_two_lines_of_text(data, number):
    assert len(keys_in(data)) == number
