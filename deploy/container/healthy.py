"""Exit status 0 if the server of this container is ready."""

import os
import sys
import urllib.error
import urllib.request

port = os.environ.get("SWITCHYARD_BIND", ":8000").rpartition(":")[2]
try:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=4):
        pass
except (urllib.error.URLError, OSError) as error:
    sys.exit(str(error))
