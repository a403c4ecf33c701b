"""Numbers for Prometheus."""

import flask

from switchyard.app.metrics.metrics import CONTENT_TYPE
from switchyard.app.openapi.contract import needs
from switchyard.app.services import services


def make_blueprint(asks_for_key: bool) -> flask.Blueprint:
    blueprint = flask.Blueprint("switchyard_metrics", __name__)

    @blueprint.get("/metrics")
    @needs("metrics" if asks_for_key else "nobody")
    def metrics() -> flask.Response:
        """Also while the model loads."""
        found = services().metrics
        assert found is not None  # or there was no such route
        response = flask.Response(found.render(), content_type=CONTENT_TYPE)
        response.headers["Cache-Control"] = "no-store"
        return response

    return blueprint
