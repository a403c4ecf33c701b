"""`python -m switchyard`: gunicorn with the server's settings. Takes gunicorn's own arguments."""

import sys

from gunicorn.app.wsgiapp import run

sys.argv[1:1] = ["-c", "python:switchyard.server.conf"]
run(prog="switchyard")
