"""The prose linter finds sentences that read as translated, in pages and in Python files."""

import subprocess
import sys

import pytest

from tests.docs.pages import ROOT

TRANSLATED = """\
A system that doesn't fit is told in one line.
The engine thread tells nothing unasked.
Nothing is checked, on loopback neither, unless `allowed_hosts` is given.
A person who has closed a page is waited for in vain.
The old engine ends behind its last job.
Its alarms are those that are worth their noise.
Without a proxy the limit holds for loops, also of a client that has left.
One whose client has left is none.
What needs action stands in the CHANGELOG.
An engine's process is started anew if it dies.
It imports what lies in its server's directory by then.
On a GPU the engine has a process of its own.
The clock is pure but for a look at the time.
Limits and shares go by what engines report.
A request that comes later is let in as soon as there is room.
Without `keys_file` no key is asked for.
A name that is no setting ends the start.
As many requests wait as may.
No `GET`, of health or of a list, loads it.
Say what would keep a server from starting.
Else a web page could point its name to this address.
Of several templates, `tool_use` serves requests with tools.
So are pointers of Git LFS in place of weights.
None of that was measured here.
That takes flash-attn.
What comes before, it raises itself.
"""
PLAIN = """\
If your system is unsupported, the script says so in one line and installs nothing.
By default a stream ends when its client disconnects.
The server behind a proxy can tell clients apart, and neither limits nor shares mix.
`GET` requests never load the model.

```
Else a job behind another is told.
```

<!-- told anew -->
"""
MODULE = '''\
"""Reads files anew."""

# Behind the end nothing follows.
MESSAGE = f"the request {1} is put behind another"
NAME = "told"
'''

SCRIPT = """\
// Loads the page anew.
const url = "http://behind/nobody"; // a piece of it, behind others
/** Nobody sees it. */
const text = "told";
"""


def lint(path, text):
    path.write_text(text)
    command = [sys.executable, "-m", "scripts.prose", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.stderr == "" and done.returncode == bool(done.stdout)
    return [int(line.split(":")[1]) for line in done.stdout.splitlines()]


def test_each_translated_sentence_is_found(tmp_path):
    page = TRANSLATED.replace("\n", "\n\n")
    sentences = range(1, page.count("\n"), 2)
    assert sorted({*lint(tmp_path / "page.md", page)}) == [*sentences]


def test_plain_sentences_and_code_are_left(tmp_path):
    assert lint(tmp_path / "page.md", PLAIN) == []


def test_docstrings_comments_and_messages_are_read(tmp_path):
    assert lint(tmp_path / "module.py", MODULE) == [1, 3, 4]
    assert lint(tmp_path / "script.js", SCRIPT) == [1, 2, 3]


@pytest.mark.parametrize("place", ["{}", "Short.\n{} `Code`.", "- Item\n- {}"])
def test_a_long_sentence_is_found(tmp_path, place):
    long = "A " + " ".join(["word"] * 35) + "."
    page = f"# {long}\n\n| {long} |\n\n```\n{long}\n```\n\n{place.format(long)}\n"
    assert len(lint(tmp_path / "page.md", page)) == 1
