"""scripts/mutate: which changes it makes, which tests it runs for one, and what it says of it."""

import json
import subprocess
from types import SimpleNamespace

import pytest

from scripts.mutation import covering
from scripts.mutation.__main__ import main
from scripts.mutation.choice import Chooser
from scripts.mutation.mutants import is_python, mutants

SMALL = {  # a project that has what the tool reads: git, types, code and tests
    "pyproject.toml": (
        '[tool.mypy]\nstrict = true\nfiles = ["app"]\n'
        "[tool.pytest.ini_options]\n"
        'addopts = "-p no:schemathesis -p no:hypothesispytest -p no:anyio -p no:xdist"\n'
    ),
    ".gitignore": "__pycache__\n.mutate\n.mypy_cache\n",
    "app/__init__.py": "",
    "app/price.py": (
        "def shipping(total: int) -> int:\n"
        "    return 0 if total >= 50 else 5\n"
        "\n\n"
        "class Vat:\n"
        "    rate = 19\n"
        "\n"
        "    def of(self, total: int) -> int:\n"
        "        return total * self.rate // 100\n"
    ),
    "tests/test_price.py": (
        "import subprocess, sys\n"
        "import pytest\n"
        "from app.price import shipping\n"
        "ready = []\n"
        "CODE = 'from app.price import Vat; print(Vat().of(200))'\n"
        "def test_0_gets_ready():\n"
        "    ready.append(True)\n"
        "def test_1_leans_on_the_one_before():\n"
        "    assert ready and shipping(100) < 100\n"
        "def test_2_a_small_order_pays():\n"
        "    assert shipping(10) == 5\n"
        "@pytest.fixture(scope='module')\n"
        "def printed():\n"
        "    return subprocess.run([sys.executable, '-c', CODE], capture_output=True).stdout\n"
        "def test_3_a_process_has_printed_the_tax(printed):\n"
        "    assert printed == b'38\\n'\n"
        "def test_4_it_is_a_line(printed):\n"
        "    assert printed.endswith(b'\\n')\n"
    ),
}
TEST = "tests/test_price.py::test_"
LEANS, PAYS = f"{TEST}1_leans_on_the_one_before", f"{TEST}2_a_small_order_pays"
PRINTED = [f"{TEST}3_a_process_has_printed_the_tax", f"{TEST}4_it_is_a_line"]


@pytest.fixture(scope="module")
def mapped(tmp_path_factory):
    """The small project, with its map."""
    root = tmp_path_factory.mktemp("small")
    for name, text in SMALL.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    git = ["git", "-C", str(root), "-c", "user.name=A", "-c", "user.email=a@example.com"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "All"]):
        subprocess.run([*git, *command], check=True)
    assert main(["--map"], root) == 0
    return root


def named(source):
    """Without file and scope."""
    return {m.name.partition(" ")[2] for m in mutants("app/a.py", source.encode())}


@pytest.mark.parametrize(
    "source, expected",
    [
        ("x < 1", {"comparison: x < 1 -> x <= 1", "constant: 1 -> 2"}),
        ("a not in b", {"comparison: a not in b -> a in b"}),
        (
            "x = a and b",
            {
                "and/or: a and b -> (a or b)",
                "operand dropped: a -> True",
                "operand dropped: b -> True",
            },
        ),
        ("x = y if not z else w", None),
        ("x = a - b", {"arithmetic: a - b -> (a + b)"}),
        ("x = 'a' + b", set()),
        ("f(a, b)", {"call removed: f(a, b) -> pass", "arguments swapped: a, b -> b, a"}),
        ("x = f(t=a)", {"option dropped: t=a -> **{}"}),
        ("x = min(a, b)", {"twin: min -> max"}),
        ("logger.info('x', 1)", set()),
        ("assert x > 1", set()),
        ("x: tuple[int, 3]", set()),
        ("def f():\n    return g", {"return: return g -> return None"}),
        ("def f():\n    raise E", {"statement removed: raise E -> pass"}),
        ("with lock:\n    x = y", {"with dropped: with lock -> if True"}),
        (
            "try:\n    x = y\nexcept E:\n    x = z\nfinally:\n    x = w",
            {"not caught: E -> ()", "swallowed: x = z -> pass", "finally emptied: x = w -> pass"},
        ),
        ("x = 1  # same: nothing reads it", set()),
        ("x = 1  # same:", {"constant: 1 -> 2"}),
    ],
)
def test_mutants_of_a_line(source, expected):
    found = mutants("app/a.py", source.encode())
    assert all(is_python(mutant, source.encode()) for mutant in found)
    if expected is None:
        assert {"condition: not z -> True", "not dropped: not z -> (z)"} < named(source)
    else:
        assert named(source) == expected


def test_a_sample_is_the_same_while_its_functions_are():
    source = SMALL["app/price.py"]
    moved = source.replace("class Vat", "# A\n# remark\nclass Vat")
    found, later = (mutants("app/price.py", text.encode()) for text in (source, moved))
    by_rank = [[m.name for m in sorted(each, key=lambda m: m.rank(7))] for each in (found, later)]
    assert by_rank[0] == by_rank[1]
    assert by_rank[0] != [m.name for m in sorted(found, key=lambda m: m.rank(8))]
    assert [m.lines for m in found] != [m.lines for m in later]


def test_tests_are_found_by_function_though_lines_have_moved(mapped, tmp_path):
    """Those of a process that a fixture has started, too."""
    root = tmp_path / "moved"
    subprocess.run(["git", "clone", "-q", str(mapped), str(root)], check=True)
    source = ("import os\n" * 20 + SMALL["app/price.py"]).encode()
    choose = Chooser(root, covering.Map.read(mapped / ".mutate" / "map.json.gz"))
    choices = {m.scope: choose(m) for m in mutants("app/price.py", source)}
    assert choices["shipping"].batches == [[LEANS, PAYS]]
    assert [sorted(batch) for batch in choices["Vat.of"].batches] == [PRINTED]
    assert choices["Vat"] == choices["Vat.of"]
    found = {"of": SimpleNamespace(mutant="app/price.py::shipping x: 1 -> 2", detail=PAYS)}
    choose = Chooser(root, choose.covered, found)
    assert choose(mutants("app/price.py", source)[0]).batches == [[PAYS], [LEANS]]
    assert {choice.how for choice in choices.values()} == {"covering"}


def results(root):
    [path] = (root / ".mutate").glob("*shipping-condition*.jsonl")
    return path, [json.loads(line) for line in path.read_text().splitlines()]


def test_mutants_are_noticed_or_survive_and_the_rest_is_tried_later(mapped, capsys):
    command = ["--only", "shipping condition"]
    assert main(command, mapped) == 1
    path, found = results(mapped)
    outcomes = {r["mutant"].partition(": ")[2]: (r["outcome"], r["detail"]) for r in found}
    assert outcomes == {
        "total >= 50 -> True": ("by a test", PAYS),
        "total >= 50 -> False": ("survived", ""),
    }
    assert all(r["false_killers"] == [LEANS] for r in found), "it fails alone, without mutants too"
    said = capsys.readouterr().out
    assert "1 of 2 mutants noticed" in said
    assert f"2 x {LEANS}" in said

    text = path.read_text()
    path.write_text(text[: text.rindex('"mutant"')])  # the tool was killed
    assert main(command, mapped) == 1
    again = results(mapped)[1]
    assert again[:-1] == found[:-1]
    assert [*again[-1].values()][:-1] == [*found[-1].values()][:-1], "but for its seconds"


def test_tests_that_the_time_was_too_short_for_are_no_failure(mapped, capsys):
    command = ["--only", "Vat.of constant: 100 -> 101", "--seconds", "0.001"]
    assert main(command, mapped) == 1
    assert "1 ran, not all of them: the time was up" in capsys.readouterr().out


def test_what_types_refuse_is_noticed_without_a_test(mapped, capsys):
    assert main(["--only", "-> return None", "--sample", "1"], mapped) == 0
    assert "1 by types" in capsys.readouterr().out
