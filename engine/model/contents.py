"""Reads the files in a model directory within limits, because the directory may come from an
untrusted source.
"""

import hashlib
import json
from itertools import islice
from pathlib import Path
from typing import Any

from switchyard.engine.errors import ModelError
from switchyard.files import read_file

SUFFIXES = (".json", ".jinja", ".model", ".safetensors")  # of the files that a model is read from
TEMPLATES = "additional_chat_templates"
MAX_FILES = 10_000
MAX_TOKENIZER = 64 << 20  # bytes of tokenizer.json; Gemma 3 has 33 MB
MAX_JSON = 16 << 20  # bytes of any other JSON
MAX_TEMPLATE = 1 << 17  # characters; the longest ones in use have some 30,000
END = 1 << 20  # bytes at either end of a weight file that are hashed


def check_contents(root: Path) -> None:
    """Raises ModelError for too many files, and for a pipe or a device, which would block silently.
    Also raises it for a link to a file elsewhere, whose owner may not want its text shown. The
    target of a link may be in the directory or, in Hugging Face's cache, in the `blobs` of the same
    model.
    """
    if not root.is_dir():
        return
    files = list(islice(root.iterdir(), MAX_FILES + 1))
    if (root / TEMPLATES).is_dir():
        files += islice((root / TEMPLATES).iterdir(), MAX_FILES + 1)
    if len(files) > MAX_FILES:
        raise ModelError(f"{root} has more than {MAX_FILES} files")
    homes = _homes(root.resolve())
    for file in sorted(files):
        if file.suffix not in SUFFIXES:
            continue
        if file.exists() and not file.is_file():
            raise ModelError(f"{file} is not a regular file")
        try:
            target = file.resolve()
        except RuntimeError:  # raised by Python 3.11 for a loop of links
            raise ModelError(f"{file} is a link to itself") from None
        if not any(target.is_relative_to(home) for home in homes):
            raise ModelError(
                f"{file} is a link out of the model directory, to {target}: copy that file into"
                " the directory"
            )


def _homes(root: Path) -> list[Path]:
    """The directories to which a link may lead. Hugging Face's cache has
    models--OWNER--NAME/snapshots/REVISION, with links to models--OWNER--NAME/blobs.
    """
    model = root.parent.parent
    is_cached = root.parent.name == "snapshots" and model.name.startswith("models--")
    return [root, model / "blobs"] if is_cached else [root]


def read_text(path: Path, max_bytes: int = MAX_JSON) -> str:
    """Raises ModelError."""
    try:
        return read_file(path, max_bytes)[0].decode()
    except (OSError, ValueError) as reason:
        raise ModelError(f"{path} can't be read: {reason}") from None


def read_json(path: Path, optional: bool = False) -> dict[str, Any]:
    """The JSON object in a file, or an empty object for an optional file that doesn't exist. Raises
    ModelError.
    """
    if optional and not path.is_file():
        return {}
    try:
        value = json.loads(read_text(path))
    except RecursionError:
        raise ModelError(f"{path} can't be read: it is nested too deeply") from None
    except ValueError as reason:
        raise ModelError(f"{path} can't be read: {reason}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} is not a JSON object")
    return value


def fingerprint(root: Path) -> str:
    """A hash of the names, sizes and contents of the files that a model is read from. It covers
    only the first and the last MiB of weight files, and of other files larger than MAX_TOKENIZER.
    Reading these files completely would take as long as a load. Copies of a model have the same
    hash. Raises OSError.
    """
    digest = hashlib.sha256()
    files = [file for file in root.iterdir() if file.suffix in SUFFIXES]
    for path in sorted((*files, *template_files(root))):
        digest.update(_digest(path, str(path.relative_to(root))))
    return f"fp_{digest.hexdigest()[:12]}"


def template_files(root: Path) -> list[Path]:
    """The files of additional chat templates, by name."""
    return sorted((root / TEMPLATES).glob("*.jinja"))


def _digest(path: Path, name: str) -> bytes:
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        digest = hashlib.sha256(repr((name, size)).encode())
        is_whole = path.suffix != ".safetensors" and size <= MAX_TOKENIZER
        for begin in range(0, size, END) if is_whole else (0, max(size - END, 0)):
            file.seek(begin)
            digest.update(file.read(END))
    return digest.digest()
