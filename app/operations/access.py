"""The access log: one line for each finished request, without texts, keys or query strings."""

import json
import logging
import time
from dataclasses import dataclass
from typing import Any

import flask

from switchyard.app.http.identity import address_of, caller_of
from switchyard.app.http.request_id import request_id
from switchyard.app.operations.account import Account
from switchyard.app.operations.trace import parse_trace

logger = logging.getLogger("switchyard.access")

OTHER = "other"  # stands for the route of paths without a route
MAX_AGENT = 200  # maximum length of a user agent, in characters


@dataclass(frozen=True, slots=True)
class AccessLine:
    """One line of the access log. The log listener's thread formats it."""

    fields: dict[str, Any]
    protocol: str
    time: float  # when the request ended, by the wall clock

    def __str__(self) -> str:
        """nginx's combined format, followed by the other fields as `name=value`."""
        told = self.fields
        when = time.strftime("%d/%b/%Y:%H:%M:%S %z", time.localtime(self.time))
        head = ("remote", "key", "method", "route", "status", "bytes", "user_agent")
        rest = " ".join(f"{k}={_text(v)}" for k, v in told.items() if k not in head)
        request = f"{told['method']} {told['route']} {self.protocol}"
        return (
            f"{told['remote'] or '-'} - {told['key'] or '-'} [{when}] {json.dumps(request)}"
            f' {told["status"]} {told["bytes"]} "-" {json.dumps(told["user_agent"] or "-")} {rest}'
        )

    @property
    def summary(self) -> str:
        return f"{self.fields['method']} {self.fields['route']} {self.fields['status']}"


def said(request: flask.Request, status: int) -> dict[str, Any]:
    """The fields of a request for logs and metrics, besides those of its account. The fields
    contain the route instead of the path, because a client can put anything into a path.
    """
    caller, trace = caller_of(request), parse_trace(request.headers.get("traceparent"))
    return {
        "request_id": request_id(),
        "remote": address_of(request),
        "key": None if caller is None else caller.name,
        "method": request.method,
        "route": OTHER if request.url_rule is None else request.url_rule.rule,
        "status": status,
        "protocol": request.environ.get("SERVER_PROTOCOL", "-"),
        "trace_id": None if trace is None else trace.trace_id,
        "span_id": None if trace is None else trace.span_id,
        "user_agent": request.headers.get("User-Agent", "")[:MAX_AGENT] or None,
    }


class AccessLog:
    """A recorder that writes a line for each request that has ended."""

    def begin(self, account: Account) -> None:
        pass

    def end(self, account: Account) -> None:
        if not account.said or account.is_quiet:
            return
        head = dict(account.said)
        protocol, tail = head.pop("protocol"), {k: head.pop(k) for k in ("trace_id", "span_id")}
        agent = head.pop("user_agent")
        fields = {
            **head,
            "duration_ms": _ms(account.ended - account.begun),
            **_usage(account),
            "bytes": account.num_bytes,
            **tail,
            "user_agent": agent,
        }
        logger.info(AccessLine(fields, protocol, time.time()))


def _usage(account: Account) -> dict[str, Any]:
    usage = account.consumption
    return {
        "id": account.identifiers[0].rpartition("-")[0] if account.identifiers else None,
        "queue_ms": _ms(usage.queue),
        "ttft_ms": _ms(usage.first_token),
        "model": account.model or None,
        "stream": account.is_streamed,
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.new_tokens,
        "finish_reason": usage.finish_reason,
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, str) and value.isascii() and value.isprintable() and " " not in value:
        return value
    return json.dumps(value)
