"""How far a load is."""

import io
import logging

import pytest

from switchyard.engine.backends import make_backend
from switchyard.engine.backends.exl import progress
from switchyard.engine.backends.exl.progress import Progress
from switchyard.engine.config import ModelConfig


def test_a_load_tells_its_share_layer_by_layer(model_path):
    told = []
    config = ModelConfig(model_path, "name", device="cpu")
    backend = make_backend(config, tell_progress=told.append)
    backend.open()
    backend.close()
    assert told == sorted(told) and len(told) > 3
    assert (told[0], *told[-2:]) == (0.0, progress.WEIGHTS, progress.GENERATOR)
    assert told[-1] < 1  # before the warm-up


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_is_drawn_on_a_terminal_by_no_thread_of_its_own(monkeypatch):
    """The fixture of all tests sees a thread that is left."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with Progress("small") as bar:
        bar(1, 4)
        drawn = terminal.getvalue()
    assert "loading small" in drawn and "25%" in drawn
    assert terminal.getvalue() != drawn  # it is wiped at the end


@pytest.mark.parametrize(("every", "lines"), [(0.0, 2), (1000.0, 0)])
def test_lines_are_logged_elsewhere_now_and_then(monkeypatch, caplog, every, lines):
    monkeypatch.setattr("sys.stderr", io.StringIO())
    monkeypatch.setattr(progress, "LOG_EVERY", every)
    with caplog.at_level(logging.INFO), Progress("small") as told:
        told(1, 4)
        told(3, 4)
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["model small: 25% loaded", "model small: 75% loaded"][:lines]


def test_no_more_lines_are_logged_than_one_in_some_seconds(monkeypatch, clock, caplog):
    clock = clock("backends.exl.progress")
    monkeypatch.setattr("sys.stderr", io.StringIO())
    with caplog.at_level(logging.INFO), Progress("small") as told:
        for done, clock.now in enumerate((54.0, 56.0, 57.0, 62.0)):
            told(done, 4)
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["model small: 25% loaded", "model small: 75% loaded"]


def test_the_modules_of_a_draft_model_are_a_part_of_the_load():
    told = []
    draft, model = progress.parts(lambda *numbers: told.append(numbers), [2, 3])
    draft(1, 2)
    model(1, 3)
    assert told == [(1, 5), (3, 5)]
