"""The server: gunicorn's settings, its worker, and the application that it serves."""

import os

# prometheus_client would share its numbers between processes by files there, and looks for it as it
# is imported. This server has one process that counts.
ignored_directory = os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)
