"""The import rules of docs/architecture.md."""

import ast
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
FILES = sorted([*(ROOT / "app").rglob("*.py"), *(ROOT / "engine").rglob("*.py"), ROOT / "wsgi.py"])

# Heavy or dangerous modules, and the only places that may import them.
HOMES = {
    "torch": "engine/backends/",
    "exllamav2": "engine/backends/",
    "numpy": "engine/backends/",
    "safetensors": "engine/backends/",
    "multiprocessing": "engine/links/pipe.py",
    "ray": "engine/links/",
    "llguidance": ("engine/grammar/", "engine/backends/sampling/matcher.py"),
    "jinja2": "app/chat/template.py",
    "flask": ("app/", "wsgi.py"),
    "werkzeug": "app/",
    "pydantic": "app/",
    "training": (),  # nowhere: the service doesn't know how its model was made
}

# Inside engine/, who may import whom: below <- above.
LAYERS = [
    {"errors", "config", "sampling", "memory"},
    {"messages"},
    {"model"},
    {"stream", "held", "rate", "grammar", "schedule"},
    {"backends"},
    {"links"},
    {"engine"},
    {"models"},
]


def imports(path):
    """Modules that a file imports anywhere, `from a import b` as a.b too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def name_of(path):
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_heavy_modules_are_imported_at_home_only(path):
    for module in imports(path):
        home = HOMES.get(module.partition(".")[0])
        assert home is None or name_of(path).startswith(home), module


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_arrows_point_down(path):
    for module in imports(path):
        package, _, rest = module.partition(".")
        if name_of(path).startswith("engine/"):
            assert package not in ("app", "wsgi"), module
        if name_of(path).startswith("app/"):
            assert package != "wsgi", module
            assert package != "engine" or rest == "" or rest[0].isupper() or "." not in rest
            assert package != "engine" or rest.partition(".")[0] not in set().union(*LAYERS), module


def test_the_engines_own_layers_point_down():
    level = {name: i for i, names in enumerate(LAYERS) for name in names}
    for path in FILES:
        if not name_of(path).startswith("engine/") or path.name == "__init__.py":
            continue
        own = path.relative_to(ROOT / "engine").parts[0].removesuffix(".py")
        for module in imports(path):
            package, _, rest = module.partition(".")
            if package == "engine" and own != rest.partition(".")[0]:
                assert level[rest.partition(".")[0]] <= level[own], f"{name_of(path)}: {module}"


def test_the_thread_knows_no_concrete_backend():
    modules = set(imports(ROOT / "engine" / "links" / "thread.py"))
    backends = {module for module in modules if module.startswith("switchyard.engine.backends")}
    assert backends == {
        "switchyard.engine.backends.base",
        "switchyard.engine.backends.base.Backend",
    }


def test_importing_app_and_engine_starts_and_loads_nothing():
    code = (
        "import sys, threading, app, engine;"
        "assert threading.active_count() == 1;"
        "assert not {'torch', 'exllamav2', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
