"""Unpack llama.cpp's tests and chat templates from a source archive of llama-cpp-python.

What a test asks for that follows from llama.cpp's own model, or where OpenAI's API says otherwise,
is replaced, so that what it asks for beside that is still looked at.
"""

import pathlib
import re
import sys
import tarfile

FOLDERS = ("tools/server/tests/", "models/templates/")
TESTS = "tools/server/tests"
OTHERWISE = (
    # The number of another tokenizer's tokens.
    ("== n_prompt", "> 0"),
    ("== n_token_output", "> 0"),
    # Whose token for the beginning has no space behind it.
    ('"<s> " + prompt', '"<s>" + prompt'),
    # Of a system_fingerprint: a build's number.
    ('.startswith("b")', '.startswith("")'),
    # OpenAI's first delta has an empty content, llama.cpp's a null.
    ('choice["delta"]["content"] is None', 'not choice["delta"]["content"]'),
    (
        'data["choices"][0]["delta"]["content"] is None',
        'not data["choices"][0]["delta"]["content"]',
    ),
    ("choice.delta.content is None", "not choice.delta.content"),
    ("['delta'].get('content') is not None", "['delta'].get('content')"),
)


def unpack(archive, target):
    with tarfile.open(archive) as file:
        for member in file.getmembers():
            _, found, name = member.name.partition("/vendor/llama.cpp/")
            if found and member.isfile() and name.startswith(FOLDERS):
                member.name = name
                file.extract(member, target, filter="data")


def adapt(target):
    tests = target / TESTS
    unused = dict(OTHERWISE)
    for path in [tests / "utils.py", *sorted((tests / "unit").glob("test_*.py"))]:
        text = path.read_text()
        for theirs, ours in OTHERWISE:
            end = r"\b" if theirs[-1].isalnum() else ""
            text, count = re.subn(re.escape(theirs) + end, ours, text)
            if count:
                unused.pop(theirs, None)
        path.write_text(text)
    if unused:
        sys.exit(f"llama.cpp's tests have no {', no '.join(unused)} any more")


if __name__ == "__main__":
    archive, target = map(pathlib.Path, sys.argv[1:])
    unpack(archive, target)
    adapt(target)
