"""The server: gunicorn's settings, its worker, and the application that it serves."""

import os

# On import, prometheus_client would share numbers between processes through this directory. Only
# one process of this server has metrics.
ignored_directory = os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)
