"""A server in the host application's own process, without a socket."""

import io
from typing import Any

import flask
import requests
import requests.adapters
import urllib3


class ServerInProcess(requests.adapters.HTTPAdapter):
    """Returns `app`'s response once it is complete."""

    def __init__(self, app: flask.Flask) -> None:
        super().__init__()
        self._app = app

    def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
        answer = self._app.test_client().open(
            request.path_url,
            method=request.method or "GET",
            headers=dict(request.headers),
            data=request.body,
        )
        raw = urllib3.HTTPResponse(
            io.BytesIO(answer.data),
            headers=dict(answer.headers),
            status=answer.status_code,
            preload_content=False,
        )
        return self.build_response(request, raw)
