"""Exit status 0 if the server of this container is ready."""

import http.client
import os
import ssl
import sys
import urllib.error
import urllib.request

port = os.environ.get("SWITCHYARD_BIND", ":8000").rpartition(":")[2]


def ask(scheme):
    url = f"{scheme}://127.0.0.1:{port}/health/ready"
    context = ssl._create_unverified_context()  # the certificate is for the server's own name
    with urllib.request.urlopen(url, timeout=4, context=context):
        pass


try:
    try:
        ask("http")
    except urllib.error.HTTPError:
        raise
    except (OSError, http.client.HTTPException):
        ask("https")
except (OSError, http.client.HTTPException) as error:
    sys.exit(str(error))
