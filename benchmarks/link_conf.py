"""The project's gunicorn.conf.py, over the backend of `link.py`."""

import pathlib

import engine.models
from benchmarks.link import make_backend

engine.models.make_backend = make_backend

__file__ = str(pathlib.Path(__file__).parent.parent / "gunicorn.conf.py")
exec(compile(pathlib.Path(__file__).read_text(), __file__, "exec"))
