"""Could a server start here? As far as a Python without any package can tell, before they are
installed: is there a model, in a format that can be read, and is the port free? A line says what is
wrong, and the exit status is 3.
"""

import errno
import os
import pathlib
import re
import socket
import sys
import tomllib
import types

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILE = os.environ.get("SWITCHYARD_CONFIG", "switchyard.toml")
DEFAULTS = {"model": "", "bind": "127.0.0.1:8000", "device": "auto"}


def setting(name: str) -> str:
    """As app/config.py reads it, and judges it later."""
    if (value := os.environ.get(f"SWITCHYARD_{name.upper()}")) is not None:
        return value
    try:
        return str(tomllib.loads(pathlib.Path(FILE).read_text()).get(name, DEFAULTS[name]))
    except (OSError, ValueError):
        return DEFAULTS[name]


def without_packages(*names: str) -> None:
    """Makes modules of these importable which need no package, while those beside them do."""
    for name in names:
        package = types.ModuleType(name)
        package.__path__ = [str(ROOT.joinpath(*name.split(".")))]
        sys.modules[name] = package


def check_model(path: str) -> None:
    """In the words of the loader."""
    without_packages("switchyard", "switchyard.engine", "switchyard.engine.model")
    from switchyard.engine.errors import ModelError
    from switchyard.engine.model.model_dir import ModelDir

    try:
        ModelDir.read(path)
    except ModelError as error:
        fail(str(error))


def check_port(bind: str) -> None:
    address = re.fullmatch(r"\[?([^\[\]]+)\]?:(\d+)", bind)
    if address is None:  # a socket's path, or nothing that could be bound: the server says so
        return
    family = socket.AF_INET6 if ":" in address[1] else socket.AF_INET
    with socket.socket(family) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((address[1], int(address[2])))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                fail(f"{bind} can't be listened on: {error.strerror}")
            fail(
                f"{bind} is taken by another program: end that, or choose another port, such as"
                f" SWITCHYARD_BIND={address[1]}:{int(address[2]) + 1}"
            )
        except OverflowError:
            return  # no port: the server says so


def fail(reason: str, status: int = 3) -> None:
    print(f"switchyard: {reason}", file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    if model := setting("model"):
        check_model(model)
    check_port(setting("bind"))
