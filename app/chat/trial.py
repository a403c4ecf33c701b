"""Opens engines, and tries their chat templates too, before this process reads the directory."""

from collections.abc import Iterable

from switchyard import engine
from switchyard.app.chat.closing import closing_ids
from switchyard.app.chat.template import ChatTemplate

READERS = (f"{__name__}:read",)


def open_tried(config: engine.ModelConfig) -> engine.Engine:
    """As engine.open_engine. Raises engine.ModelError."""
    return engine.open_engine(config, READERS)


def try_all(served: Iterable[engine.Served]) -> dict[str, engine.ModelError]:
    """The errors of all directories that fail. Tries all of them in one process."""
    paths = [path for one in served for path in one.config.directories]
    return engine.try_directories(paths, READERS)


def read(model_dir: engine.ModelDir, tokenizer: engine.Tokenizer) -> None:
    """In the process of the trial."""
    closing_ids(ChatTemplate(model_dir), tokenizer)
