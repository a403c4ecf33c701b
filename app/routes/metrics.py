"""The route that serves metrics for Prometheus."""

import flask

from switchyard.app.metrics.metrics import MIMETYPE, PARAMETERS
from switchyard.app.openapi.contract import declares
from switchyard.app.services import services


def make_blueprint(asks_for_key: bool) -> flask.Blueprint:
    blueprint = flask.Blueprint("switchyard_metrics", __name__)

    @blueprint.get("/metrics")
    @declares(
        {200: None},
        streams={MIMETYPE: str},
        errors=(401, 429),
        who="metrics" if asks_for_key else "public",
    )
    def metrics() -> flask.Response:
        """Metrics in Prometheus' text format, even while the model loads."""
        found = services().metrics
        assert found is not None  # otherwise the route does not exist
        response = flask.Response(found.render(), content_type=MIMETYPE + PARAMETERS)
        response.headers["Cache-Control"] = "no-store"
        return response

    return blueprint
