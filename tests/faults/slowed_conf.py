"""The project's gunicorn.conf.py, over the real backend, slowed down."""

import pathlib

import engine.models
from tests.faults.slowed import make_backend

engine.models.make_backend = make_backend

__file__ = str(pathlib.Path(__file__).parent.parent.parent / "gunicorn.conf.py")
exec(compile(pathlib.Path(__file__).read_text(), __file__, "exec"))
