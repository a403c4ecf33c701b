"""The server: gunicorn's settings, its worker, and the application that it serves."""

import os

# At its import, prometheus_client would share numbers between processes through this directory.
# Only one process of this server counts.
ignored_directory = os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)
