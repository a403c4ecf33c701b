"""The import rules of docs/architecture.md."""

import ast
import functools
import importlib
import pathlib
import subprocess
import sys
import typing

import pytest

import switchyard.app
from switchyard.app.config import WireFormat
from tests.conftest import run_code

ROOT = pathlib.Path(__file__).parent.parent
FILES = sorted(
    path for part in ("app", "engine", "switchyard") for path in (ROOT / part).rglob("*.py")
)
OTHERS = sorted(
    path
    for part in ("benchmarks", "examples", "scripts", "tests", "training")
    for path in (ROOT / part).rglob("*.py")
    if "node_modules" not in path.parts
)

# Heavy or dangerous modules, and the only places that may import them.
HOMES = {
    "torch": "engine/backends/",
    "exllamav2": "engine/backends/exl2/",
    "exllamav3": "engine/backends/exl3/",
    "numpy": "engine/backends/",
    "safetensors": "engine/backends/",
    "multiprocessing": (),  # its way to start a process imports the main module once more
    "pickle": "engine/links/wire.py",
    "ray": "switchyard/cluster/",
    "llguidance": ("engine/grammar/", "engine/backends/sampling/matcher.py"),
    "jinja2": ("app/chat/template.py", "app/chat/sandbox.py"),
    "flask": ("app/", "switchyard/server/wsgi.py", "switchyard/testing/"),
    "werkzeug": "app/",
    "prometheus_client": ("app/metrics/", "switchyard/server/wsgi.py"),
    "pydantic": "app/",
    "gunicorn": "switchyard/",
    "requests": ("app/host/upstream.py", "switchyard/testing/"),
    "urllib3": ("app/host/upstream.py", "app/host/patient.py", "switchyard/testing/"),
    "training": (),  # nowhere: the service doesn't know how its model was made
}

# Who may import whom, by the first part of a name inside the package: below <- above. Those of one
# set may import each other.
LAYERS = {
    "engine": [
        {"errors", "config", "job", "panics", "sampling", "sources", "stats"},
        {"messages"},
        {"memory", "model"},
        {"stream", "held", "grammar", "schedule", "standing"},
        {"backends"},
        {"links"},
        {"engine", "trial"},
        {"models"},
    ],
    "app": [
        {"parts", "exceptions"},
        {"request"},
        {"http", "config", "engine_settings", "operation_settings", "sources", "table_settings"},
        {"errors"},
        {"openapi"},
        {"operations"},
        {"ledger"},
        {"delivery"},
        {"chat", "metrics"},
        {"services"},
        {"leases"},
        {"routes", "formats", "ui"},
        {"blueprint"},
        {"host"},
        {"extension", "create"},
    ],
    "engine/backends": [{"base"}, {"sampling"}, {"exl"}, {"exl2"}, {"exl3"}],
    "engine/backends/exl3": [{"cache", "config", "library"}, {"model"}, {"layers"}, {"loader"}],
    "engine/backends/exl": [
        {"faults", "loaded", "progress", "results", "stops"},
        {"detokenizer", "occupancy"},
    ],
    "engine/backends/exl2": [
        {"load"},
        {"prompt"},
        {"prompt_generator"},
        {"paging"},
        {"job"},
        {"events", "steps"},
        {"held_generator"},
        {"generator"},
        {"guessing"},
        {"make"},
        {"backend", "cpu", "cuda"},
    ],
    "app/formats": [
        {"shapes", "format", "codex", "logprobs"},
        {"changes", "loads"},
        {"answer", "choices", "count", "models"},
        {"text"},
        set(typing.get_args(WireFormat)),
    ],
}

MAX_MODULES = 12  # in a folder


@functools.cache
def imports(path):
    """Modules that a file imports anywhere, `from a import b` as a.b too."""
    return [*_imports(path)]


def _imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def own_imports(path, package):
    """What a file imports of `package`, an "app/formats", by the first part of its name there."""
    prefix = f"switchyard.{package.replace('/', '.')}."
    for module in imports(path):
        if module.startswith(prefix):
            yield module.removeprefix(prefix).partition(".")[0]


def entries(package):
    """The modules and folders of a package, with their files."""
    for path in sorted((ROOT / package).rglob("*.py")):
        first = path.relative_to(ROOT / package).parts[0].removesuffix(".py")
        if first != "__init__":
            yield first, path


def each_import(files):
    """The name of a file and of a module that it imports, for all of them."""
    return [(name_of(path), module) for path in files for module in imports(path)]


def test_heavy_modules_are_imported_at_home_only():
    for name, module in each_import(FILES):
        home = HOMES.get(module.partition(".")[0])
        assert home is None or name.startswith(home), (name, module)


def test_arrows_point_down():
    inner = set().union(*LAYERS["engine"])
    for name, module in each_import(FILES):
        assert module.partition(".")[0] not in ("app", "engine", "wsgi"), (name, module)
        if name.startswith("engine/"):
            below = ("switchyard.app", "switchyard.server")
            assert not module.startswith(below), (name, module)
        if name.startswith("app/"):
            assert not module.startswith("switchyard.server"), (name, module)
            of_engine = module.removeprefix("switchyard.engine.")
            is_inner = of_engine != module and of_engine.partition(".")[0] in inner
            assert not is_inner, (name, module)


def test_nothing_needs_the_cluster():
    """Its command alone imports it, by name."""
    for path in FILES:
        if not name_of(path).startswith("switchyard/cluster/"):
            assert not any(one.startswith("switchyard.cluster") for one in imports(path)), path


def check_layers(package):
    level = {name: i for i, names in enumerate(LAYERS[package]) for name in names}
    for own, path in entries(package):
        for other in own_imports(path, package):
            if other in level:  # else it is a name of the package itself
                assert level[other] <= level[own], f"{name_of(path)} imports {other}"


def test_the_engines_own_layers_point_down():
    check_layers("engine")


@pytest.mark.parametrize("package", [name for name in LAYERS if name != "engine"])
def test_layers_of_a_package_point_down(package):
    check_layers(package)


@pytest.mark.parametrize("package", LAYERS)
def test_every_module_has_a_layer(package):
    assert {own for own, _ in entries(package)} == set().union(*LAYERS[package])


def test_no_wire_format_imports_another():
    for own, path in entries("app/formats"):
        if own in typing.get_args(WireFormat):
            others = {*typing.get_args(WireFormat), "models"} & {*own_imports(path, "app/formats")}
            assert others <= {own}, name_of(path)


def test_a_folder_has_a_dozen_modules_at_most():
    for folder in {path.parent for path in FILES}:
        modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(modules) <= MAX_MODULES, name_of(folder)


def test_services_are_asked_for_by_routes_alone():
    """What is below takes what it needs as arguments."""
    for path in FILES:
        if "switchyard.app.services.services" in imports(path):
            assert name_of(path).startswith(
                ("app/formats/", "app/routes/", "app/ui/", "app/leases.py", "app/host/local.py")
            )


def test_nothing_goes_by_the_names_that_hosts_have():
    """`app` and `engine` are the folders' names, and `switchyard.app` the packages'."""
    for name, module in each_import(OTHERS):
        assert module.partition(".")[0] not in ("app", "engine"), (name, module)


def test_no_module_is_loaded_under_two_names():
    """Not even in a checkout, where `from app import create_app` goes on to work."""
    code = (
        "import pkgutil, sys, importlib, app, switchyard.app, switchyard.engine\n"
        "for package in (switchyard.app, switchyard.engine):\n"
        "    for info in pkgutil.walk_packages(package.__path__, f'{package.__name__}.'):\n"
        "        if '.backends.exl' not in info.name:\n"
        "            importlib.import_module(info.name)\n"
        "assert app.create_app is switchyard.app.create_app\n"
        "assert 'switchyard.app.formats.openai.routes' in sys.modules\n"
        "twice = [m for m in sys.modules if m.startswith(('app.', 'engine'))]\n"
        "assert not twice, twice"
    )
    run_code(code)


def test_the_thread_knows_no_concrete_backend():
    modules = set(imports(ROOT / "engine" / "links" / "thread.py"))
    backends = {module for module in modules if module.startswith("switchyard.engine.backends")}
    name = "switchyard.engine.backends.base"
    assert backends == {name, f"{name}.Backend"}


def test_importing_app_and_engine_starts_and_loads_nothing():
    code = (
        "import sys, threading, switchyard.app, switchyard.engine;"
        "assert threading.active_count() == 1;"
        "assert not {'torch', 'exllamav2', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_all_public_names_stand_at_the_top():
    """Those of errors, too, which have one root."""
    for module in ("app.exceptions", "engine.errors", "settings", "errors"):
        found = importlib.import_module(f"switchyard.{module}")
        for name, value in vars(found).items():
            if isinstance(value, type) and value.__module__ == found.__name__:
                assert issubclass(value, switchyard.SwitchyardError), name
                assert getattr(switchyard, name) is value
    for name in switchyard.__all__:
        assert getattr(switchyard, name).__name__ == name
    assert {*switchyard.app.__all__} <= {*switchyard.__all__}
    with pytest.raises(AttributeError, match="no attribute 'Swichyard'"):
        switchyard.Swichyard  # noqa: B018


def test_importing_the_package_loads_no_flask():
    code = "import sys, switchyard; assert not {'flask', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_the_codec_of_host_names_is_found_before_threads_look_for_it():
    code = "import encodings, switchyard.app.blueprint; assert encodings._cache.get('idna')"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
