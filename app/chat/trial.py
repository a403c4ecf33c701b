"""Opens engines. Before this process reads a model's directory, another process tries it, including
its chat templates.
"""

from collections.abc import Iterable

from switchyard import engine
from switchyard.app.chat.closing import closing_ids
from switchyard.app.chat.template import ChatTemplate

READERS = (f"{__name__}:read",)


def open_tried(config: engine.ModelConfig) -> engine.Engine:
    """Like engine.open_engine. Raises engine.ModelError."""
    return engine.open_engine(config, READERS)


def try_all(served: Iterable[engine.Served]) -> dict[str, engine.ModelError]:
    """The errors of all directories that fail. Tries all of them in one process."""
    paths = [path for one in served for path in one.config.directories]
    return engine.try_directories(paths, READERS)


def read(model_dir: engine.ModelDir, tokenizer: engine.Tokenizer) -> None:
    """Reads a directory in the trial process."""
    closing_ids(ChatTemplate(model_dir), tokenizer)
