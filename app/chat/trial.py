"""Opens engines. Another process first tries to read the model's directory, including its chat
templates.
"""

from collections.abc import Iterable

from switchyard import engine
from switchyard.app.chat.closing import closing_ids
from switchyard.app.chat.template import ChatTemplate

READERS = (f"{__name__}:read",)


def open_tried(config: engine.ModelConfig) -> engine.Engine:
    """Like engine.open_engine, but another process first tries to read the directory. Raises
    engine.ModelError.
    """
    return engine.open_engine(config, READERS)


def try_all(served: Iterable[engine.Served]) -> dict[str, engine.ModelError]:
    """Tries to read all directories in a separate process, and returns the errors of those that
    fail.
    """
    paths = [path for one in served for path in one.config.directories]
    return engine.try_directories(paths, READERS)


def read(model_dir: engine.ModelDir, tokenizer: engine.Tokenizer) -> None:
    """Reads a directory. Called in the trial process."""
    closing_ids(ChatTemplate(model_dir), tokenizer)
