"""Settings for operations: API keys, proxies, logs, metrics, page, ledger, stored responses."""

import ipaddress
from typing import Literal, Self

import pydantic
import pydantic_settings
from pydantic import Field

UNIX = "unix"  # in `trusted_proxies`: a proxy on a Unix socket, which has no address


class OperationSettings(pydantic_settings.BaseSettings):
    keys_file: str = Field(
        "",
        description="TOML file with API keys, their roles and limits: [operations](operations.md)."
        " Empty: no key is required.",
    )
    trusted_proxies: list[str] = Field(
        [],
        description="Networks of proxies whose `X-Forwarded-For` is trusted, such as"
        ' `["10.0.0.0/8"]`; `unix` for a proxy on a Unix socket. The client is the rightmost'
        " address in the header that is not a trusted proxy's.",
    )

    access_log: str = Field(
        "",
        description="Where to write one line per request: `-` for standard error, otherwise the"
        " path of a file, which may be renamed while the server runs. Empty: no access log.",
    )
    log_format: Literal["text", "json"] = Field(
        "text",
        description="Format of the server's output: `text`, or `json`, one object per line.",
    )

    metrics: Literal["off", "open", "key"] = Field(
        "open",
        description="Access to `/metrics`: none (`off`), without a key (`open`), or for keys with"
        " the roles `metrics` and `admin` (`key`). With a `keys_file`, the default is `key`.",
    )

    ui: bool = Field(True, description="At `/`, serve a page with a chat and the server's state.")
    max_viewers: int = Field(
        100,
        ge=1,
        le=4096,
        description="Maximum number of open pages that get the server's state every second, without"
        " occupying request threads. Additional pages poll every five seconds.",
    )

    ledger: str = Field(
        "",
        description="SQLite file, on a local disk, that records the usage of each API key."
        " `GET /v1/usage` and the budgets of keys need the ledger. Empty: none.",
    )
    ledger_days: int = Field(
        400,
        ge=0,
        description="Days for which the ledger keeps a row for each request. Daily sums are always"
        " kept. 0: forever.",
    )

    store_timeout: float = Field(
        3600.0,
        ge=0,
        le=30 * 86400,
        description="Seconds for which `/v1/responses` keeps a response in memory, with the"
        " conversation before it, for `previous_response_id`. 0: nothing is stored.",
    )
    max_stored_bytes: int = Field(
        64 * 1024 * 1024,
        ge=0,
        description="Memory for stored responses, in bytes. Above this limit, the client whose"
        " responses take the most memory loses its oldest ones. 0: nothing is stored.",
    )

    @pydantic.model_validator(mode="after")
    def _ask_for_keys(self) -> Self:
        if self.metrics == "key" and not self.keys_file:
            raise ValueError("metrics: 'key' needs a keys_file")
        if self.keys_file and "metrics" not in self.model_fields_set:
            self.__dict__["metrics"] = "key"
        return self

    @pydantic.field_validator("trusted_proxies")
    @classmethod
    def _are_networks(cls, value: list[str]) -> list[str]:
        for network in value:
            if network != UNIX:
                try:
                    ipaddress.ip_network(network)
                except ValueError as reason:
                    raise ValueError(f"must contain only networks or {UNIX}: {reason}") from None
        return value
