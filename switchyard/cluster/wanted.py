"""What the settings require of a cluster, and how the cluster's state differs from that."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from switchyard import __version__
from switchyard.app import SettingsError
from switchyard.app.config import Settings
from switchyard.app.table_settings import TableModel
from switchyard.engine.model.contents import fingerprint

NOT_OF_AN_ENGINE = ("at", "link", "engine_key_file")  # options that an engine doesn't use


@dataclass(frozen=True, slots=True)
class Wanted:
    """A model's engines. `jobs`: how many jobs each engine should have, which determines the number
    of engines, from `least` to `most`. `nodes`: the labels of the machines that may run them;
    without labels, any machine may. `version`: the result of `version_of`. `path`: the path of the
    model's files.
    """

    name: str
    least: int
    most: int
    jobs: int | None
    gpus_each: int
    nodes: tuple[str, ...]
    version: str
    grace: float
    path: str = ""

    def files(self) -> str:
        """The fingerprint of the model's files on this machine. It is empty if there are no files,
        for example because a volume isn't mounted, or if they can't be read.
        """
        root = Path(self.path)
        try:
            return fingerprint(root) if (root / "config.json").is_file() else ""
        except OSError:
            return ""


@dataclass(frozen=True, slots=True)
class There:
    """A model's engines as they were last declared to the cluster."""

    engines: int
    version: str


def wanted(settings: Settings) -> list[Wanted]:
    """Raises engine.ModelError, and SettingsError without a `[cluster]` table or a model for it."""
    if settings.cluster is None:
        raise SettingsError("cluster: the settings have no [cluster] table", "cluster")
    if not (models := settings.in_cluster()):
        raise SettingsError('models: no model has at = ["cluster"]', "models")
    return [_of_model(one, settings.grace) for one in models]


def _of_model(model: TableModel, grace: float) -> Wanted:
    number = model.engines
    return Wanted(
        name=model.model_name,
        least=number.min if number else 1,
        most=number.max if number else 1,
        jobs=number.jobs if number else None,
        gpus_each=model.gpus_each,
        nodes=tuple(model.nodes),
        version=version_of(model),
        grace=grace,
        path=model.served().config.path,
    )


def version_of(model: TableModel) -> str:
    """A digest of the settings that an engine reads and of Switchyard's version. Machines with the
    same settings and the same version compute the same digest. Raises engine.ModelError.
    """
    options = {**asdict(model.served().config), "switchyard": __version__}
    for name in NOT_OF_AN_ENGINE:
        del options[name]
    return hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:12]


def changes(wanted: Sequence[Wanted], there: Mapping[str, There]) -> list[str]:
    """Yields a line for each model that `apply` changes, or no lines if nothing has to change."""
    lines = [line for one in wanted if (line := _change(one, there.get(one.name)))]
    names = {one.name for one in wanted}
    return [
        *lines,
        *(
            f"{name}: ends {_engines(one.engines)}"
            for name, one in there.items()
            if name not in names
        ),
    ]


def _change(wanted: Wanted, there: There | None) -> str:
    number = min(max(there.engines, wanted.least), wanted.most) if there else wanted.least
    if there is None:
        return f"{wanted.name}: starts {_engines(number)}"
    parts = []
    if there.engines != number:
        parts.append(f"from {there.engines} to {_engines(number)}")
    if there.version != wanted.version:
        waits = "; requests wait while the only one loads" if number == 1 else ""
        parts.append(f"replaces {_engines(there.engines)}, as their version has changed{waits}")
    return f"{wanted.name}: {', '.join(parts)}" if parts else ""


def _engines(number: int) -> str:
    return "1 engine" if number == 1 else f"{number} engines"
