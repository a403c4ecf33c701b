"""`switchyard check`: checks whether a server could start with these settings. Loads nothing."""

import errno
import http.client
import json
import os
import ssl
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import click

from switchyard import engine
from switchyard.app import SettingsError
from switchyard.app.chat.closing import closing_ids
from switchyard.app.chat.template import ChatTemplate
from switchyard.app.chat.trial import try_all
from switchyard.app.config import Settings
from switchyard.app.ledger.file import open_file
from switchyard.app.operations.keys import read_keys
from switchyard.cli.doctor import probe
from switchyard.cli.options import read, with_settings
from switchyard.cli.server import connect, url_of_settings
from switchyard.engine.backends import refuse_gpu_settings
from switchyard.engine.backends.exl3 import check_machine
from switchyard.engine.memory.gpus import check_gpus, has_gpu, is_for_cpu
from switchyard.engine.memory.together import Together
from switchyard.engine.model.exl3 import is_by_exl3
from switchyard.engine.model.loadable import check_loadable
from switchyard.engine.models.opening import ask_engine, engines_of, look_at
from switchyard.server import address


class Finding(NamedTuple):
    what: str
    is_good: bool
    message: str


@click.command()
@with_settings
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of objects.")
@click.option(
    "--engine",
    "at",
    help="Only check whether the shared engine at this address has loaded its model.",
)
def check(as_json: bool, at: str | None, **given: Any) -> None:
    """Check settings, keys, models, memory and address without starting a server.

    Reports each fault that would stop a server from starting or a model from loading.
    """
    findings = list(_find(**given)) if at is None else [_of_engine(at, **given)]
    if as_json:
        click.echo(json.dumps([finding._asdict() for finding in findings]))
    else:
        for what, is_good, message in findings:
            click.echo(f"{'✓' if is_good else '✗'} {what}: {message}")
    sys.exit(not all(finding.is_good for finding in findings))


def _find(**given: Any) -> Iterator[Finding]:
    try:
        settings = read(**given)
        # Models loaded at startup come first: they stay loaded, and the others get what they leave.
        models = sorted(settings.served(), key=lambda one: one.load != "start")
    except (SettingsError, engine.ModelError) as error:
        yield Finding("settings", False, str(error))
        return
    yield Finding("settings", True, "can be read")
    if settings.keys_file:
        yield _of_keys(settings)
    if settings.ledger:
        yield _of_ledger(settings)
    if settings.access_log not in ("", "-"):
        yield _of_access_log(settings.access_log)
    together = Together()
    for one in models:
        for what, is_good, message in _of_model(one, together):
            yield Finding(what, is_good, f"{one.config.name}: {message}")
    yield _of_address(settings.bind)


def _of_keys(settings: Settings) -> Finding:
    try:
        table = read_keys(settings.keys_file, settings.max_priority, bool(settings.ledger))
    except SettingsError as error:
        return Finding("keys", False, str(error))
    return Finding("keys", True, f"{len(table.by_name)} in {settings.keys_file}")


def _of_ledger(settings: Settings) -> Finding:
    try:
        open_file(settings.ledger).close()
    except SettingsError as error:
        return Finding("ledger", False, str(error))
    return Finding("ledger", True, f"{settings.ledger} can be written")


def _of_access_log(path: str) -> Finding:
    """Checks the path of the access log without creating the file."""
    folder = os.path.dirname(os.path.abspath(path))
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK))
    except OSError as error:
        may_be_made = error.errno == errno.ENOENT and os.access(folder, os.W_OK | os.X_OK)
        if not may_be_made:
            return Finding("access log", False, f"setting access_log: {error}")
    return Finding("access log", True, f"{path} can be written to")


def _of_address(bind: str) -> Finding:
    reason = address.refusal(bind)
    if reason is not None and _is_ours():
        return Finding(
            "address", True, f"{bind} is already used by a Switchyard server: stop it first"
        )
    return Finding("address", reason is None, reason or f"{bind} is free")


def _is_ours() -> bool:
    """Whether a Switchyard server responds at the address in the settings, with or without TLS."""
    url = url_of_settings()
    return any(map(_is_switchyard, dict.fromkeys((url, url.replace("http:", "https:", 1)))))


def _is_switchyard(url: str) -> bool:
    context = ssl.create_default_context()  # any certificate will do
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection, _ = connect(url, 1, context)
    try:
        connection.request("GET", "/health/live")
        return bool(json.loads(connection.getresponse().read(1000)) == {"status": "live"})
    except (OSError, ValueError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _of_model(served: engine.Served, together: Together) -> Iterator[Finding]:
    config = served.config
    if config.at:
        yield from _of_shared(config)
        return
    try:
        for error in try_all([served]).values():
            raise error
        model_dir = engine.ModelDir.read(config.path)
        footprints, lengths = check_loadable(config)
        if is_for_cpu(config.device):
            refuse_gpu_settings(config)
        elif is_by_exl3(config, model_dir.config):
            check_machine(config)
        check_gpus(config)
        tokenizer = engine.Tokenizer(model_dir)
    except engine.ModelError as error:
        yield Finding("model", False, str(error))
        return
    [architecture, *_] = model_dir.config["architectures"]
    template = "a chat template" if model_dir.chat_template else "no chat template"
    context = f"{config.max_seq_len or model_dir.max_seq_len or '?'} tokens of context"
    yield Finding("model", True, f"{architecture}, {model_dir.format}, {context}, {template}")
    chat_template = ChatTemplate(model_dir)
    if chat_template.fault is not None:
        yield Finding("chat template", False, chat_template.fault)
    yield _of_ends(tokenizer, closing_ids(chat_template, tokenizer))
    try:
        stays = served.load == "start"
        if is_for_cpu(config.device):
            together.on_host(config, stays)
        elif has_gpu():
            mode, tokens = together.on_gpus(config, footprints, lengths.max_seq_len, stays)
            yield Finding("memory", True, f"there is room for {tokens} tokens of {mode} cache")
        elif not probe()["sees"]:  # without NVML, only torch can tell
            yield Finding("device", False, "device 'cuda': torch finds no CUDA device")
    except engine.NoRoom as error:
        beside = f", beside {', '.join(together.names)}" if together.names else ""
        yield Finding("memory", False, f"{error}{beside}")
    except engine.ModelError as error:
        yield Finding("memory", False, str(error))


def _of_ends(tokenizer: engine.Tokenizer, closing: Sequence[int]) -> Finding:
    """Reports the tokens that end an answer."""
    ends = dict.fromkeys((*tokenizer.eos_token_ids, *closing))
    named = ", ".join(f"{tokenizer.token(i)} ({i})" for i in ends)
    message = f"answers end with {named}" if ends else "no file names an end token"
    return Finding("ends", True, message)


def _of_engine(at: str, **given: Any) -> Finding:
    try:
        found = ask_engine(at, read(**given).engine_key_file)
    except (SettingsError, engine.EngineError, OSError, EOFError) as error:
        return Finding("engine", False, f"{at}: {error}")
    how = "is ready" if found.is_ready else "is loading its model, or about to exit"
    return Finding("engine", found.is_ready, f"{at} {how}, in process {found.pid}")


def _of_shared(config: engine.ModelConfig) -> Iterator[Finding]:
    try:
        engines = engines_of(config)
    except (engine.EngineError, OSError, ValueError) as error:
        yield Finding("engine", False, str(error))
        return
    for at in engines:
        try:
            pid = look_at(config, at)
        except (engine.EngineError, OSError, EOFError) as error:
            yield Finding("engine", False, f"{at}: {error}")
        else:
            yield Finding("engine", True, f"{at} is served by process {pid}")
