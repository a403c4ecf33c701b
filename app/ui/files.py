"""The routes of the page: its files, and its stream of the server's state."""

import functools
import hashlib
import pathlib

import flask
import werkzeug.exceptions

from switchyard.app.config import Settings
from switchyard.app.openapi.contract import needs
from switchyard.app.ui.viewers import Viewers

HERE = pathlib.Path(__file__).parent
PAGE = "text/html"
TYPES = {".html": PAGE, ".js": "text/javascript", ".css": "text/css"}
# The page writes only text nodes. Browsers with Trusted Types allow nothing else.
POLICY = "; ".join(
    (
        "default-src 'none'",
        *(f"{kind}-src 'self'" for kind in ("script", "style", "connect")),
        "img-src 'self' data:",
        *(f"{kind} 'none'" for kind in ("base-uri", "form-action", "frame-ancestors")),
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # browsers keep the file, and revalidate it with its ETag
}


def wants_page() -> bool:
    """Whether the current request prefers a page to JSON. Browsers do."""
    accepted = flask.request.accept_mimetypes
    return accepted[PAGE] > accepted["application/json"]


def wants_json() -> bool:
    """Whether the current request explicitly accepts JSON, rather than any type."""
    return any(name == "application/json" for name, _ in flask.request.accept_mimetypes)


def answer_file(name: str) -> flask.Response:
    data, tag = _read(name)
    response = flask.Response(data, mimetype=TYPES[pathlib.Path(name).suffix], headers=HEADERS)
    response.set_etag(tag)
    response.make_conditional(flask.request)
    return response


@functools.cache
def assets() -> frozenset[str]:
    """The names of the page's scripts and styles."""
    return frozenset(file.name for file in HERE.iterdir() if file.suffix in (".js", ".css"))


@functools.cache
def _read(name: str) -> tuple[bytes, str]:
    """The content of a file, and the file's ETag."""
    data = (HERE / name).read_bytes()
    if name == "index.html":
        data = data.replace(b"<!-- styles -->", _links("stylesheet", ".css"))
        # Preloads all modules, because a browser would find them one import after the other.
        data = data.replace(b"<!-- modules -->", _links("modulepreload", ".js"))
    return data, hashlib.sha256(data).hexdigest()[:20]


def _links(relation: str, suffix: str) -> bytes:
    names = sorted(name for name in assets() if name.endswith(suffix))
    return "".join(f'<link rel="{relation}" href="ui/{name}">' for name in names).encode()


def make_blueprint(settings: Settings) -> flask.Blueprint:
    blueprint = flask.Blueprint("switchyard_ui", __name__, url_prefix="/ui")
    viewers = Viewers(settings)

    @blueprint.get("/<name>")
    @needs("public")
    def asset(name: str) -> flask.Response:
        if name not in assets():
            raise werkzeug.exceptions.NotFound("the page has no such file")
        return answer_file(name)

    @blueprint.get("/status")
    @needs("any")
    def watch() -> flask.Response:
        return viewers.answer()

    return blueprint
