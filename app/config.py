"""All settings of the server, read once at startup from switchyard.toml and the environment."""

import difflib
import re
from typing import Any, Literal, Self, get_args

import pydantic
import pydantic_settings
from pydantic import Field

from switchyard.app.exceptions import BadRequest
from switchyard.app.operation_settings import OperationSettings
from switchyard.app.request.sampling import Sampled
from switchyard.app.request.validation import validate
from switchyard.app.sources import Environment, TomlFile, check_environment
from switchyard.app.table_settings import TableModel, TableSettings
from switchyard.settings import (
    DEFAULT_BIND,
    FILE,
    PREFIX,
    SettingsError,
    check_bind,
    file,
    refusal,
)

WireFormat = Literal[
    "openai",
    "responses",
    "anthropic",
    "plain",
    "tokens",
    "kobold",
    "llamacpp",
    "ollama",
    "tabby",
    "websocket",
]


class Settings(OperationSettings, TableSettings):
    """All settings. Each setting can be given in switchyard.toml under its name, or in the
    environment as SWITCHYARD_NAME.
    """

    model_config = pydantic_settings.SettingsConfigDict(
        env_prefix=PREFIX, toml_file=FILE, extra="forbid", frozen=True
    )

    bind: str = Field(DEFAULT_BIND, description="Address and port to listen on.")
    bind_wait: float = Field(
        0.0,
        ge=0,
        le=86400,
        description="Seconds to wait at startup for another server to release `bind` before"
        " startup fails.",
    )
    presets: dict[str, dict[str, Any]] = Field(
        default={},
        description="Sets of sampling parameters, by name, for a request's `preset`. In the"
        " file, each is a table `[presets.NAME]` of API parameters.",
    )
    clamp_max_tokens: bool = Field(
        True,
        description="True: if prompt and `max_tokens` don't fit in the context, reduce `max_tokens`"
        " and list it in the header `X-Switchyard-Ignored`. False: refuse the request.",
    )
    unknown_parameters: Literal["refuse", "ignore"] = Field(
        "refuse",
        description="`refuse` requests with unknown parameters, or `ignore` the parameters and list"
        " them in the header `X-Switchyard-Ignored`.",
    )
    max_body_bytes: int = Field(
        0,
        ge=0,
        description="Maximum size of a request body, in bytes; larger bodies get 413. 0: 32 bytes"
        " per token of the model's context, at least 1 MiB.",
    )
    heartbeat: float = Field(
        5.0,
        gt=0,
        allow_inf_nan=False,
        description="Seconds of silence after which a stream gets a comment line, so that proxies"
        " keep it open and the server notices clients that leave.",
    )
    queue_timeout: float = Field(
        300.0,
        ge=0,
        allow_inf_nan=False,
        description="Seconds that a request may wait for its first job to start before it gets 408."
        " 0: no limit.",
    )
    first_token_timeout: float = Field(
        600.0,
        ge=0,
        allow_inf_nan=False,
        description="Seconds that a request may wait for its first token, including time in the"
        " queue, before it gets 408. 0: no limit.",
    )
    total_timeout: float = Field(
        3600.0,
        ge=0,
        allow_inf_nan=False,
        description="Seconds that a request may take in total, and the maximum for its `timeout`."
        " 0: no limit.",
    )
    resume_timeout: float = Field(
        0.0,
        ge=0,
        le=86400,
        description="Seconds for which a stream of server-sent events continues without its client,"
        " and can be resumed by `Last-Event-ID`. 0: streams end when their client leaves.",
    )
    idempotency_timeout: float = Field(
        60.0,
        ge=0,
        le=86400,
        description="Seconds for which a request with an `Idempotency-Key` continues without its"
        " client, and its answer is kept for retries. 0: such requests are refused.",
    )
    body_timeout: float = Field(
        30.0,
        ge=0.1,
        le=86400,
        description="Seconds to wait for a request's whole body before answering 408.",
    )
    send_timeout: float = Field(
        30.0,
        ge=0.1,
        le=86400,
        description="Seconds after which a client that accepts no data is disconnected, and its"
        " jobs are cancelled.",
    )
    reserve_threads: int = Field(
        16,
        ge=1,
        description="Request threads for health checks and refusals, in addition to one for each"
        " job and each WebSocket.",
    )
    max_websockets: int = Field(
        32,
        ge=0,
        le=4096,
        description="Maximum number of open WebSockets, each with its own request thread. At"
        " most half of them may come from one address. Additional ones are refused with 429.",
    )
    websocket_timeout: float = Field(
        600.0,
        ge=0,
        allow_inf_nan=False,
        description="Seconds without a running generation after which a WebSocket is closed."
        " 0: no limit.",
    )
    grace: float = Field(
        30.0,
        ge=0,
        le=86400,
        allow_inf_nan=False,
        description="Seconds for which running jobs may continue after SIGTERM.",
    )
    allowed_hosts: list[str] = Field(
        [],
        description="Names, without a port, that requests over TCP may have in `Host`;"
        ' `["*"]`: any. Empty: `localhost`, `127.0.0.1` and `[::1]` if the server listens only on'
        " loopback, otherwise any.",
    )
    cors_origins: list[str] = Field(
        [],
        description="Origins of web pages that may use the server from a browser, such as"
        ' `["https://example.org"]`; `["*"]`: all. Pages of the server\'s own origin are always'
        " allowed.",
    )
    formats: list[WireFormat] = Field(
        list(get_args(WireFormat)),
        description="Wire formats to serve: "
        + ", ".join(f"`{name}`" for name in get_args(WireFormat))
        + ". Formats whose packages are not installed are left out.",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO", description="`DEBUG`, `INFO`, `WARNING` or `ERROR`, in upper or lower case."
    )

    @pydantic.field_validator("presets")
    @classmethod
    def _are_sampling(cls, value: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        return {name: _read_preset(name, preset) for name, preset in value.items()}

    @pydantic.field_validator("bind")
    @classmethod
    def _is_address(cls, value: str) -> str:
        return check_bind(value)

    @pydantic.field_validator("log_level", mode="before")
    @classmethod
    def _in_capitals(cls, value: object) -> object:
        return value.upper() if isinstance(value, str) else value

    @pydantic.field_validator("cors_origins")
    @classmethod
    def _are_origins(cls, value: list[str]) -> list[str]:
        """Checks that origins have the format that browsers send, because they are compared
        literally.
        """
        for origin in value:
            if not re.fullmatch(r"\*|[a-z][a-z0-9+.-]*://[^/?#\s]+", origin, re.I | re.ASCII):
                raise ValueError(
                    f"{origin!r} must be * or an origin such as https://example.org"
                    " (SCHEME://HOST or SCHEME://HOST:PORT, without a trailing slash)"
                )
        return [origin.lower() for origin in value]

    @pydantic.field_validator("allowed_hosts")
    @classmethod
    def _are_names(cls, value: list[str]) -> list[str]:
        for name in value:
            if not re.fullmatch(r"\*|[\w.-]+|\[[0-9a-fA-F:.]+\]", name, re.ASCII):
                raise ValueError(f"{name!r} must be a host name or address, without a port, or *")
        return [name.lower() for name in value]

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[pydantic_settings.BaseSettings],
        init_settings: pydantic_settings.PydanticBaseSettingsSource,
        env_settings: pydantic_settings.PydanticBaseSettingsSource,
        dotenv_settings: pydantic_settings.PydanticBaseSettingsSource,
        file_secret_settings: pydantic_settings.PydanticBaseSettingsSource,
    ) -> tuple[pydantic_settings.PydanticBaseSettingsSource, ...]:
        toml = TomlFile(settings_cls, file())
        return init_settings, Environment(settings_cls), toml

    def fitted(self, context: int) -> Self:
        """The settings, completed with the defaults that depend on the length of the context.
        `context`: that length, in tokens.
        """
        if self.max_body_bytes:
            return self
        return self.model_copy(update={"max_body_bytes": max(32 * context, 1 << 20)})

    @property
    def takes_unknown(self) -> bool:
        """Whether unknown parameters are listed in the response instead of being refused."""
        return self.unknown_parameters == "ignore"

    @property
    def num_threads(self) -> int:
        """The number of request threads: one for each job and each WebSocket, plus
        `reserve_threads`.
        """
        return self.max_jobs + self.max_websockets + self.reserve_threads


def _read_preset(name: str, preset: dict[str, Any]) -> dict[str, Any]:
    try:
        return validate(Sampled, preset).model_dump(exclude_unset=True)
    except BadRequest as error:
        raise ValueError(f"{name}: {error}") from None


def _no_setting(place: tuple[int | str, ...]) -> str:
    """The reason why the name at `place` is not a setting."""
    name = str(place[-1])
    of, known = "this server", Settings.model_fields.keys()
    if place[0] == "models" and len(place) == 3:
        if name in known:
            return "not a setting of one model: put it above the first [[models]]"
        of, known = "a model", TableModel.model_fields.keys()
    elif len(place) > 1:
        return f"not a setting of {place[0]}"
    elif name in TableModel.model_fields:
        return "a setting of one model: put it in a [[models]] table, even if there is only one"
    nearest = difflib.get_close_matches(name, known, 1)
    return f"not a setting of {of}" + (f"; did you mean {nearest[0]}?" if nearest else "")


def _table_of(place: tuple[int | str, ...]) -> str:
    """Text for a message that names the `[[models]]` table with `place`, counted from 1. Empty if
    no table contains `place`.
    """
    match place:
        case ("models", int(index), *_):
            return f" (in table {index + 1} of [[models]])"
    return ""


def read_settings(**overrides: Any) -> Settings:
    """The settings from `overrides`, the environment and the file. Raises SettingsError."""
    check_environment(Settings.model_fields.keys())
    try:
        return Settings(**overrides).given_by({name: f"argument {name}" for name in overrides})
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ")
        if not name:  # a validator of several settings names the wrong one in its message
            name, _, message = message.partition(": ")
        table = _table_of(first["loc"])
        if first["type"] == "extra_forbidden":
            place = "" if name in overrides else f" in {file()}"
            raise SettingsError(f"{name}{place} is {_no_setting(first['loc'])}{table}") from None
        raise refusal(name, message + table, overrides) from None
    except (ValueError, OSError) as error:  # the file isn't TOML, or can't be read
        raise SettingsError(f"{file()}: {error}") from None
