"""Builds packages as setuptools does, but removes build/, because the next wheel would otherwise
contain deleted files that are still there. pyproject.toml names this module.
"""

import shutil

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403  # everything that needs no change


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    _clear()
    try:
        return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)
    finally:
        _clear()


def _clear():
    for name in ("build", "switchyard.egg-info"):
        shutil.rmtree(name, ignore_errors=True)
