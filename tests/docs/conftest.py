from tests.app.conftest import ask, gate, make_client, way

__all__ = ["ask", "gate", "make_client", "way"]
