"""What .importlinter can't say of imports, and the size of folders."""

import importlib
import pathlib
from collections import Counter

import pytest

import switchyard.app
from tests.conftest import run_code

ROOT = pathlib.Path(__file__).parent.parent
MAX_MODULES = 12  # in a folder


def test_a_folder_has_a_dozen_modules_at_most():
    files = [path for top in ("app", "engine", "switchyard") for path in (ROOT / top).rglob("*.py")]
    folders = Counter(path.parent for path in files if path.name != "__init__.py")
    assert {folder: n for folder, n in folders.items() if n > MAX_MODULES} == {}


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


@pytest.mark.parametrize(
    ("modules", "is_so"),
    [
        ("switchyard.app, switchyard.engine", "threading.active_count() == 1"),
        ("switchyard.app", "not {'torch', 'exllamav2', 'numpy'} & {*sys.modules}"),
        ("switchyard.engine", "not {'torch', 'exllamav2', 'numpy'} & {*sys.modules}"),
        ("switchyard", "not {'flask', 'torch'} & {*sys.modules}"),
        # The codec of host names, before threads look for it.
        ("switchyard.app.blueprint", "encodings._cache.get('idna')"),
    ],
)
def test_an_import_starts_and_loads_as_much_as_is_needed(modules, is_so):
    run_code(f"import encodings, sys, threading, {modules}; assert {is_so}")
